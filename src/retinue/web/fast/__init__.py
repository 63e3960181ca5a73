"""HTTP code for measured speed; docs/performance.md lists when each file can be deleted."""
