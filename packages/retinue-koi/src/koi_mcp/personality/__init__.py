"""Personalities: identifiers, traits and profiles."""
