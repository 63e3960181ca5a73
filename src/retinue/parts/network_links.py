"""The links of a hub to nodes of other networks: parts report them, ``show_mesh`` shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A node of another network that shares a link with the hub's node.

    ``direction`` is "in" where the hub has subscribed there, "out" where it has subscribed at the hub.
    """

    name: str
    url: str
    direction: str
    status: str


class NetworkLinks:
    """A product of a hub: the links by the name of the part that has them."""

    def __init__(self) -> None:
        self._readers: dict[str, Callable[[], Sequence[NetworkLink]]] = {}

    def add(self, part: str, list_links: Callable[[], Sequence[NetworkLink]]) -> None:
        """Let a part tell its links; they are listed at each question."""
        self._readers[part] = list_links

    def list_all(self) -> dict[str, Sequence[NetworkLink]]:
        """The links by the name of their part."""
        return {part: list_links() for part, list_links in self._readers.items()}
