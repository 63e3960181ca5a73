"""Artifacts over HTTP: the endpoint ``/artifacts`` of hubs and agents, and its client."""
