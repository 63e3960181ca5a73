"""The demo as a person runs it: one command, a real job, and nothing left behind."""
