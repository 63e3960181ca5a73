"""The protocol of Retinue's own processes: /execute, /agent-card, /health."""
