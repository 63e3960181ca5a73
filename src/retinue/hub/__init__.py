"""The hub's own skills: directory, search, workflows, runs."""

HUB_NAME = "retinue"
"""The name of the hub's agent; in this module, so that a process that only calls the hub loads no skills."""
