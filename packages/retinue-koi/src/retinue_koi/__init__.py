"""Agents on KOI networks: codecs, the node, personalities, and the coordinator's lists."""
