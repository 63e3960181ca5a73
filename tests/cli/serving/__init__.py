"""Tests of the commands that start a process, and of ``new``."""
