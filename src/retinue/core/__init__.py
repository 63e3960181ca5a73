"""Nouns only: frozen records, calls and errors; imports nothing of Retinue."""
