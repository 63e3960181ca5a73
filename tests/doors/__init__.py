"""One matrix over the endpoints: what an agent answers itself, and what its hub answers for it."""
