"""A model of many hubs, fed with costs that are measured here, and compared with four real ones."""
