"""Tests of finding skills by words."""
