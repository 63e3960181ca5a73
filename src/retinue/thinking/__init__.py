"""Agents that think: the formats and rules of a loop in which a model calls skills; pure."""
