"""The server of a coordinator."""

from retinue.runtime.koi.servers import AgentRegistryServer

__all__ = ["AgentRegistryServer"]
