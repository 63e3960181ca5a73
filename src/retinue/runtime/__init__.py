"""Composition roots: the processes hub, agent, worker and stdio."""
