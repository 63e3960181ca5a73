"""Tests of `retinue.workflows`."""
