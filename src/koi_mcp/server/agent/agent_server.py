"""The server of an agent."""

from retinue.runtime.koi.servers import AgentPersonalityServer

__all__ = ["AgentPersonalityServer"]
