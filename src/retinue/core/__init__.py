"""Nouns (call, record, errors) and pure value helpers; imports no other room."""
