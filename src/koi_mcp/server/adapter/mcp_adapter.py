"""The adapter from personalities to MCP."""

from retinue.koi.adapter import MCPAdapter

__all__ = ["MCPAdapter"]
