"""A2A: endpoint, client, codecs."""
