"""The server of a coordinator."""

from retinue_koi.programs.servers import AgentRegistryServer

__all__ = ["AgentRegistryServer"]
