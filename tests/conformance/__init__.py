"""The public MCP conformance suites against an agent that ``retinue serve`` serves."""
