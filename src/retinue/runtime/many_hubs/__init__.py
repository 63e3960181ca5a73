"""Hubs and workers on one Postgres database: they share verdicts about agents, changes and tokens."""
