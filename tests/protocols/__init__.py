"""Tests of the protocols."""
