"""The adapter from personalities to MCP."""

from retinue_koi.adapter import MCPAdapter

__all__ = ["MCPAdapter"]
