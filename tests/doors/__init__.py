"""One matrix over the doors: what an agent answers itself, and what its hub answers for it."""
