"""The node of a coordinator."""

from retinue_koi.programs.nodes import CoordinatorAdapterNode

__all__ = ["CoordinatorAdapterNode"]
