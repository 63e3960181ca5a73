"""Observes processes: readiness, metrics, spans, log files, and the traffic of a hub."""
