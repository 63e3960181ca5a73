"""The Model Context Protocol: codecs, server, client, relay and client configurations."""
