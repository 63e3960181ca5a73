"""Tests of the commands that find, call and follow."""
