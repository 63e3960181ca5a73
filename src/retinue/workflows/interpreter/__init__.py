"""The body of a run: a walk through the steps, one module for each kind of step."""
