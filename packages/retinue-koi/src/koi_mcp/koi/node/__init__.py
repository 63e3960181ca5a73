"""Nodes of a KOI network."""

from retinue_koi.programs.nodes import CoordinatorAdapterNode, KoiAgentNode

__all__ = ["CoordinatorAdapterNode", "KoiAgentNode"]
