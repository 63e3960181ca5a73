"""The processes of seed 003: agents and coordinators on a KOI network, their configuration and the demo."""
