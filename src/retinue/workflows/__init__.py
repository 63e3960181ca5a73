"""Durable orchestration; knows calls, not wires."""
