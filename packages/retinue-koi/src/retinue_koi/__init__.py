"""Agents on KOI networks: the wire, the node, personalities, and the coordinator's lists."""
