"""The agents that ship with Retinue."""
