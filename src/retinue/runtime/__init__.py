"""Composes the processes hub, agent, worker and stdio."""
