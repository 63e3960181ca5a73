"""The node of an agent."""

from retinue.runtime.koi.nodes import KoiAgentNode

__all__ = ["KoiAgentNode"]
