"""Observes a process: spans, metrics over OpenTelemetry, log files."""
