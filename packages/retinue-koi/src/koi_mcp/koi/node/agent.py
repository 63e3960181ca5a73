"""The node of an agent."""

from retinue_koi.programs.nodes import KoiAgentNode

__all__ = ["KoiAgentNode"]
