"""The server of an agent."""

from retinue_koi.programs.servers import AgentPersonalityServer

__all__ = ["AgentPersonalityServer"]
