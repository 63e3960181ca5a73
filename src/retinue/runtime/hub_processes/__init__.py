"""A hub of several processes at one address: one leads, and the others serve calls beside it."""
