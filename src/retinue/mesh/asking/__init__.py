"""Questions to agents about what they can do: ``query_capabilities``."""
