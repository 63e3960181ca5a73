"""The Runs port on DBOS, over SQLite or Postgres."""
