"""The command ``retinue chat``: who answers, what a turn does, and what the terminal shows of it."""
