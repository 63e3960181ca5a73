"""Pins the tools of imported servers, so that a person accepts each change of a text or schema.

The tools that a server offers first are accepted. Later a changed tool keeps its accepted text and is not
called, and a new one stays hidden, until a person accepts them. Of the annotations, the title is compared,
and hints only where they promise more than before, because some servers change the others at every start. A
name that is offered twice with different definitions is not listed, because only the server knows which one a
call runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any

import orjson
import structlog

from retinue.core.errors import ExecutionFailedError

_log = structlog.get_logger("retinue.pins")

Tool = Mapping[str, Any]

_COMPARED = ("name", "description", "request", "inputSchema", "outputSchema")
_PROMISES = {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False}
"""By hint, the value with which clients ask less or calls are repeated; one that is not given is false."""
_DIFF_LINES = 12
_MAX_COMPARED_LINES = 2_000
"""Lines of both forms of a tool that are compared; the time grows with the square of them."""


@dataclass(slots=True)
class ServerPins:
    """The tools of one server by name: accepted tools, and changed or new tools that wait."""

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
        self._ambiguous: dict[str, set[str]] = {}
        """By server, the names last offered with different definitions."""

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
        tools, ambiguous = _by_name(offered)
        if ambiguous != self._ambiguous.get(server, set()):
            self._ambiguous[server] = ambiguous
            _log.warning(
                "tools not listed: one name, two definitions", server=server, tools=sorted(ambiguous)
            )
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
        """Raise ExecutionFailedError for a tool that has changed since it was accepted.

        The error says nothing of the new text, because a model reads it and that text is not accepted.
        """
        known = self._of(server)
        if self._enabled and tool in known.waiting:
            name = server.partition(":")[0]  # without the tag of a digest
            raise ExecutionFailedError(
                f"server {name} changed its tool {tool} after it was accepted",
                remedy=f"its owner reads and accepts the change: retinue imports accept {name}",
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
        """Drop the tools of a server; adding it again accepts its tools as they are then."""
        if server in self._servers:
            self._change(lambda servers: servers.pop(server, None))

    def keep_only(self, is_used: Callable[[str], bool]) -> None:
        """Drop the tools of servers that will not be asked any more."""
        if unused := [name for name in self._servers if not is_used(name)]:
            self._change(lambda servers: [servers.pop(name, None) for name in unused])

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
    return {name: {"accepted": pins.accepted, "waiting": pins.waiting} for name, pins in servers.items()}


def _by_name(offered: Iterable[Tool]) -> tuple[dict[str, Tool], set[str]]:
    """The tools by name, and the names that are left out: those of tools that differ."""
    tools: dict[str, Tool] = {}
    ambiguous = set()
    for tool in offered:
        name = str(tool.get("name"))
        if tools.setdefault(name, tool) != tool:
            ambiguous.add(name)
    return {name: tool for name, tool in tools.items() if name not in ambiguous}, ambiguous


def _find_waiting(known: ServerPins, tools: Mapping[str, Tool]) -> dict[str, Tool]:
    return {
        name: tool
        for name, tool in tools.items()
        if name not in known.accepted or _is_changed(known.accepted[name], tool)
    }


def _is_changed(before: Tool, after: Tool) -> bool:
    return _compared(before) != _compared(after) or bool(_find_new_promises(before, after))


def _find_new_promises(before: Tool | None, after: Tool) -> list[str]:
    """The hints that promise more than before; all hints of a new tool."""
    if before is None:
        return [hint for hint in _PROMISES if _is_set(after, hint)]
    return [hint for hint, more in _PROMISES.items() if _is_set(before, hint) != more == _is_set(after, hint)]


def describe_change(before: Tool | None, after: Tool, lines: int = _DIFF_LINES) -> str:
    """The change of a tool as the first ``lines`` of a diff."""
    hints = _find_new_promises(before, after)
    old, new = [] if before is None else _lines(before, hints), _lines(after, hints)
    if len(old) + len(new) > _MAX_COMPARED_LINES:
        return f"{len(old):,} lines before, {len(new):,} now: too many to compare here"
    changed = list(unified_diff(old, new, lineterm="", n=0))[2:]
    more = [f"… {len(changed) - lines} more lines"] if len(changed) > lines else []
    return "\n".join([*changed[:lines], *more])


def _lines(tool: Tool, hints: Iterable[str]) -> list[str]:
    # the name first, and long texts last
    shown = {"name": tool.get("name")} | {hint: _is_set(tool, hint) for hint in hints} | _compared(tool)
    return orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode().splitlines()


def _compared(tool: Tool) -> dict[str, Any]:
    title = tool.get("title") or _annotations(tool).get("title")
    compared = {"title": title} if title else {}
    return compared | {key: tool[key] for key in _COMPARED if key in tool}


def _is_set(tool: Tool, hint: str) -> bool:
    return _annotations(tool).get(hint) is True


def _annotations(tool: Tool) -> Mapping[str, Any]:
    stated = tool.get("annotations")
    return stated if isinstance(stated, Mapping) else {}
