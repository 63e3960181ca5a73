"""The process as its parts see it, with its settings by the class of their table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:  # every command that reads settings loads this module
    from retinue.authoring.agent import Agent
    from retinue.authoring.local import LocalFirst
    from retinue.mesh.dispatch import Dispatcher, Invoker
    from retinue.mesh.guard.trace_guard import TraceSigner
    from retinue.parts.shown_agents import ShownAgents
    from retinue.storage.state import State
    from retinue.web.http_client import HttpClient

T = TypeVar("T")

Kind = str
"""hub, agent, worker, stdio (an agent on standard input and output), command (without a hub), or another.

Other distributions have kinds of their own. The last two of the core serve nothing.
"""

Echo = Callable[[str], None]
"""Prints one line for a person."""


class Tables:
    """The tables of ``retinue.toml``, each found by its class; a table that is left out has its defaults."""

    def __init__(self, tables: Iterable[object]) -> None:
        self._tables = {type(table): table for table in tables}

    def get(self, kind: type[T]) -> T:
        """The table of this class."""
        for known, table in self._tables.items():
            if issubclass(known, kind):
                return table  # type: ignore[return-value]
        return kind()


@dataclass(slots=True, kw_only=True)
class Process:
    """One process as its parts see it.

    ``agent`` is the one that the process serves, ``shown`` finds the record of any agent for a caller.
    ``url`` is the address that others use, ``own_url`` that of this machine; both are None if the process
    serves nothing. ``remote`` calls agents of other processes, ``invokers`` holds what calls the others.
    ``ask_to_stop`` ends the process with a reason and an exit code. Products are found by their class.
    """

    kind: Kind
    agent: Agent
    dispatcher: Dispatcher
    shown: ShownAgents
    state: State
    tables: Tables
    http: HttpClient
    signer: TraceSigner
    token_for: Callable[[str, str], str | None]
    remote: Invoker
    invokers: LocalFirst
    echo: Echo
    environ: Mapping[str, str]
    url: str | None
    own_url: str | None
    ask_to_stop: Callable[[str, int], None]
    when_open: Callable[[], Awaitable[None]] | None = None
    """Called when all parts are open, before the process serves."""
    products: dict[type, object] = field(default_factory=dict)

    @property
    def advertised(self) -> str:
        """The end of a line with `own_url`: the address for others if it is another one, else ""."""
        return "" if self.url == self.own_url else f", advertised as {self.url}"

    def add(self, kind: type[T], product: T) -> None:
        """Let parts find a product by its class."""
        self.products[kind] = product

    def find(self, kind: type[T]) -> T | None:
        """The product of this class, None if no part of the process gives it."""
        return cast("T | None", self.products.get(kind))

    def get(self, kind: type[T]) -> T:
        """The product of this class; KeyError if no part of the process gives it."""
        return cast(T, self.products[kind])
