"""HTTP code for measured speed; docs/performance.md says when each file can go."""
