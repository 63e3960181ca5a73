"""Scripts for limited subprocesses with the module under test; the agents import only ``calls``."""
