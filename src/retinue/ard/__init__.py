"""ARD (Agentic Resource Discovery 0.9): the catalog of a hub, search, and search at other registries."""
