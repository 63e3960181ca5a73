"""MCP as a part of an agent's process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.endpoints.agent_mcp import McpEndpoints, open_agent_mcp
from retinue.runtime.joined_mesh import AgentCalls

MCP_RANK = 10


class AgentMcpPart(Part):
    """MCP: the endpoint of the process's agent."""

    name = "mcp"
    kinds = frozenset({"agent", "stdio"})
    gives = McpEndpoints
    rank = MCP_RANK
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        async with open_agent_mcp(process, process.get(AgentCalls).mesh) as endpoints:
            yield Opened(product=endpoints, routes=endpoints.routes, drain=endpoints.end)
