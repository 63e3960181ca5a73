"""The interpreter: executes the steps of a run."""
