"""Runs that survive their process: the ports of ``workflows.runs`` on DBOS, over SQLite or Postgres.

Importing a module of this package imports DBOS (0.3 s): the composition roots do it when first needed.
"""
