"""Questions to agents about their capabilities: ``query_capabilities``."""
