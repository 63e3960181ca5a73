"""What can be observed of processes: readiness, metrics, spans, log files, and traffic from the audit log."""
