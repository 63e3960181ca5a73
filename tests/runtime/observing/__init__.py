"""Tests of the spans, metrics and log files of a process."""
