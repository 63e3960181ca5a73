"""Tests of the built distributions, installed without this checkout."""
