"""What a process tells of itself: spans, metrics over OpenTelemetry, log files."""
