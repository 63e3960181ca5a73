"""Durable orchestration of calls."""
