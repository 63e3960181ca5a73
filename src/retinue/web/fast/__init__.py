"""Own HTTP code that exists because of measured speed; docs/performance.md says when each file can go."""
