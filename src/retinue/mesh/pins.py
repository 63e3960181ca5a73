"""The accepted tools of imported servers: a server may not change a tool's text or schemas unnoticed.

The tools that a server offers first are accepted. Later a changed tool keeps its accepted text and is not
called, and a new one stays hidden, until a person accepts them. Annotations are not compared: some servers
change them at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any

import orjson

from retinue.core.errors import ExecutionFailedError

Tool = Mapping[str, Any]

_COMPARED = ("name", "description", "inputSchema", "outputSchema")
_DIFF_LINES = 12
_MAX_COMPARED_LINES = 2_000
"""Of both forms of a tool; the time of a comparison grows with the square of their lines."""


@dataclass(slots=True)
class ServerPins:
    """The tools of one server by name: accepted ones, and those that wait, changed or new."""

    accepted: dict[str, Tool] = field(default_factory=dict)
    waiting: dict[str, Tool] = field(default_factory=dict)


Document = Mapping[str, Any]
"""The pins of all imports as they are stored: by server, ``accepted`` and ``waiting`` tools by name."""

Update = Callable[[Callable[[Document], Document]], Document]
"""Applies a change to the stored document while no other process writes it; returns the new document."""


class Pins:
    """The pins of all imports; ``update`` makes each change in the stored document, where there is one.

    With ``enabled=False`` every tool counts as accepted.
    """

    def __init__(
        self, document: Document | None = None, update: Update | None = None, *, enabled: bool = True
    ) -> None:
        self._update = update
        self._enabled = enabled
        self._servers = _parse(document or {})

    def load(self, document: Document) -> None:
        """Use the pins that another process has kept."""
        self._servers = _parse(document)

    def accepted_tools(self, server: str) -> tuple[Tool, ...]:
        """The accepted tools of a server, known before it answers."""
        return tuple(self._of(server).accepted.values())

    def list_waiting(self, server: str) -> Mapping[str, Tool]:
        """The tools of a server that wait to be accepted, changed or new."""
        return self._of(server).waiting

    def list_changes(self, server: str) -> dict[str, tuple[Tool | None, Tool]]:
        """The waiting tools of a server: the accepted form, None for a new tool, and the offered one."""
        known = self._of(server)
        return {name: (known.accepted.get(name), tool) for name, tool in known.waiting.items()}

    def review(self, server: str, offered: Iterable[Tool]) -> tuple[Tool, ...]:
        """The tools to list: accepted ones in their accepted form."""
        tools = {str(tool.get("name")): tool for tool in offered}
        if not self._enabled:
            return tuple(tools.values())
        known = self._servers.get(server)
        if known is None or _find_waiting(known, tools) != known.waiting:

            def take(servers: dict[str, ServerPins]) -> None:
                kept = servers.setdefault(server, ServerPins(dict(tools)))
                kept.waiting = _find_waiting(kept, tools)

            self._change(take)
            known = self._of(server)
        return tuple(
            known.accepted[name] if name in known.waiting else tool
            for name, tool in tools.items()
            if name in known.accepted
        )

    def check(self, server: str, tool: str) -> None:
        """Raise ExecutionFailedError for a tool that has changed since it was accepted."""
        known = self._of(server)
        if self._enabled and tool in known.waiting:
            difference = describe_change(known.accepted.get(tool), known.waiting[tool])
            raise ExecutionFailedError(
                f"server {server} changed its tool {tool} after it was accepted:\n{difference}",
                remedy=f"read the change, then: retinue imports accept {server}",
            )

    def accept(self, server: str) -> list[str]:
        """Accept what waits; returns the names."""
        names: list[str] = []

        def take(servers: dict[str, ServerPins]) -> None:
            known = servers.get(server, ServerPins())
            names.extend(known.waiting)
            known.accepted |= known.waiting
            known.waiting = {}

        self._change(take)
        return names

    def forget(self, server: str) -> None:
        """Drop what is known of a server; adding it again accepts its tools as they are then."""
        if server in self._servers:
            self._change(lambda servers: servers.pop(server, None))

    def _of(self, server: str) -> ServerPins:
        return self._servers.get(server) or ServerPins()

    def _change(self, work: Callable[[dict[str, ServerPins]], object]) -> None:
        def apply(document: Document) -> Document:
            servers = _parse(document)
            work(servers)
            return _render(servers)

        self.load(self._update(apply) if self._update is not None else apply(_render(self._servers)))


def _parse(document: Document) -> dict[str, ServerPins]:
    return {
        name: ServerPins(dict(kept["accepted"]), dict(kept["waiting"])) for name, kept in document.items()
    }


def _render(servers: Mapping[str, ServerPins]) -> Document:
    return {name: {"accepted": one.accepted, "waiting": one.waiting} for name, one in servers.items()}


def _find_waiting(known: ServerPins, tools: Mapping[str, Tool]) -> dict[str, Tool]:
    return {
        name: tool
        for name, tool in tools.items()
        if name not in known.accepted or _compared(tool) != _compared(known.accepted[name])
    }


def describe_change(before: Tool | None, after: Tool, lines: int = _DIFF_LINES) -> str:
    """The change of a tool as the first ``lines`` of a diff."""
    old, new = [] if before is None else _lines(before), _lines(after)
    if len(old) + len(new) > _MAX_COMPARED_LINES:
        return f"{len(old):,} lines before, {len(new):,} now: too many to compare here"
    found = list(unified_diff(old, new, lineterm="", n=0))[2:]
    more = [f"… {len(found) - lines} more lines"] if len(found) > lines else []
    return "\n".join([*found[:lines], *more])


def _lines(tool: Tool) -> list[str]:
    return orjson.dumps(_compared(tool), option=orjson.OPT_INDENT_2).decode().splitlines()


def _compared(tool: Tool) -> dict[str, Any]:
    return {key: tool[key] for key in _COMPARED if key in tool}
