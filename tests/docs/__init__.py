"""Proves that README and docs are true: examples run, tables match the code, links lead somewhere."""
