"""Pure: puts moved entries back into the configuration from which they came.

An unchanged text becomes the former text, byte for byte. In a text that was changed since, the lines of the
move are exchanged where they still stand as they were written; else the entries are added again. Either way
the result must be the present document with the entries, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import InvalidSettingError
from retinue.mcp.client_configs.clients import Client


@dataclass(frozen=True, slots=True)
class MovedEntry:
    """An entry of ``container`` before the move."""

    container: tuple[str, ...]
    name: str
    entry: Any


@dataclass(frozen=True, slots=True)
class PutBack:
    """A text with its entries: ``restored`` names the missing entries, ``kept`` the entries that were added
    again since, with other content, and stay as they are.
    """

    text: str | None
    restored: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def put_back(
    client: Client,
    text: str | None,
    *,
    before: str | None,
    after: str | None,
    moved: Sequence[MovedEntry],
    hub_name: str | None,
    where: str,
) -> PutBack:
    """The text with the moved entries, and without the hub's if the move added it (``hub_name``).

    ``before`` and ``after`` are the texts of the move. Raises InvalidSettingError for invalid syntax.
    """
    if text == after:
        return PutBack(before, tuple(entry.name for entry in moved))
    present = text or ""
    kept: list[MovedEntry] = []
    missing: list[MovedEntry] = []
    for entry in moved:
        now = client.list_entries(present, where, entry.container).get(entry.name)
        (missing if now is None else kept).append(entry)
    wanted = _with_entries(client.read_document(present, where), missing)
    if hub_name is not None:
        wanted = _without(wanted, (client.container, hub_name))
    # if the entry was added again since, restoring the old lines would duplicate its key
    exchanged = None if kept else _exchange_lines(present, before or "", after or "")
    if exchanged is not None and _is_same(client, exchanged, wanted, where):
        edited = exchanged
    else:
        edited = present if hub_name is None else client.remove_entry(present, hub_name, where)
        for entry in missing:
            edited = client.copy_entry(edited, before or "", entry.name, where, entry.container)
    former = {(entry.container, entry.name): entry.entry for entry in moved}
    differ = tuple(
        entry.name
        for entry in kept
        if client.list_entries(present, where, entry.container)[entry.name]
        != former[entry.container, entry.name]
    )
    return PutBack(edited, tuple(entry.name for entry in missing), differ)


def _exchange_lines(text: str, before: str, after: str) -> str | None:
    """The text with the lines that the move changed as they were; None unless they stand there once."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    # one line on both sides says where lines belong that were only removed
    start, end = max(start - 1, 0), max(end - 1, 0)
    written, former = ("".join(lines[start : len(lines) - end]) for lines in (new, old))
    if not written or text.count(written) != 1:
        return None
    return text.replace(written, former)


def _is_same(client: Client, text: str, wanted: Mapping[str, Any], where: str) -> bool:
    try:
        return bool(without_empty(client.read_document(text, where)) == without_empty(wanted))
    except InvalidSettingError:
        return False


def _with_entries(document: Mapping[str, Any], entries: Sequence[MovedEntry]) -> dict[str, Any]:
    edited = dict(document)
    for entry in entries:
        edited = _with(edited, (*entry.container, entry.name), entry.entry)
    return edited


def _with(document: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    inner = document.get(path[0])
    nested = _with(inner if isinstance(inner, dict) else {}, path[1:], value) if len(path) > 1 else value
    return {**document, path[0]: nested}


def _without(document: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    edited = dict(document)
    if len(path) == 1:
        edited.pop(path[0], None)
    elif isinstance(inner := edited.get(path[0]), dict):
        edited[path[0]] = _without(inner, path[1:])
    return edited


def without_empty(value: Any) -> Any:
    """The document without empty objects, because an edit leaves an empty object after the last entry."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: without_empty(item) for key, item in value.items()}
    return {key: item for key, item in kept.items() if item != {}}
