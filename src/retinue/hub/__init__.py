"""The hub's own skills: directory, search, workflows, runs."""
