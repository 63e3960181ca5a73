"""The node of a coordinator."""

from retinue.runtime.koi.nodes import CoordinatorAdapterNode

__all__ = ["CoordinatorAdapterNode"]
