"""Runs in memory: the twin of the durable driver, as strict as that one."""
