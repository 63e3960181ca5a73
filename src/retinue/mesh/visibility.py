"""Who sees what: ``private`` ⊂ ``mesh`` ⊂ ``exposed``, and the lists of an ``agent.json`` (DESIGN 2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

from retinue.core.record import AgentRecord, Prompt, Resource, Skill, Visibility
from retinue.mesh.suggest import suggest


class Shown(Protocol):
    """A skill, a resource or a prompt: whatever is marked with who sees it."""

    @property
    def visibility(self) -> Visibility: ...


def is_visible(thing: Shown, scopes: frozenset[str]) -> bool:
    """Whether a caller of these scopes sees it; a hidden one is to it as a missing one.

    What is exposed to MCP clients is open to the mesh as well.
    """
    return thing.visibility in scopes or (thing.visibility == "exposed" and "mesh" in scopes)


def covers(scopes: frozenset[str], others: frozenset[str]) -> bool:
    """Whether a caller of these scopes sees and may do all that one of the other scopes does."""
    return others <= (scopes | {"exposed"} if "mesh" in scopes else scopes)


@dataclass(frozen=True, slots=True)
class UnknownEntry:
    """An entry of a list that matches nothing, with the names nearest to it."""

    list: str
    entry: str
    near: tuple[str, ...] = ()

    def __str__(self) -> str:
        hint = f"; did you mean {', '.join(self.near)}?" if self.near else ""
        return f"mcp.{self.list}: {self.entry!r} matches nothing of this agent{hint}"


@dataclass(frozen=True, slots=True)
class ExposureLists:
    """The ``mcp`` block of an ``agent.json`` (S-06 … S-08; SPEC 5, doubts 8 and 10).

    Each holds names or globs such as ``fs:*``: of skills their ids, of resources names or uris, of
    prompts names. Listed = exposed, not listed = private, and the private lists win over everything.
    """

    expose_tools: Sequence[str] = ()
    private_tools: Sequence[str] = ()
    expose_resources: Sequence[str] = ()
    private_resources: Sequence[str] = ()
    expose_prompts: Sequence[str] = ()
    private_prompts: Sequence[str] = ()

    def apply(self, record: AgentRecord) -> AgentRecord:
        """``record`` as these lists want it seen."""
        tools = (self.expose_tools, self.private_tools)
        resources = (self.expose_resources, self.private_resources)
        prompts = (self.expose_prompts, self.private_prompts)
        return replace(
            record,
            skills=tuple(replace(s, visibility=_choose(_names_of(s), *tools)) for s in record.skills),
            resources=tuple(
                replace(r, visibility=_choose(_names_of(r), *resources)) for r in record.resources
            ),
            prompts=tuple(replace(p, visibility=_choose(_names_of(p), *prompts)) for p in record.prompts),
        )

    def find_unknown(self, record: AgentRecord) -> list[UnknownEntry]:
        """The entries that match nothing of ``record``: mostly slips of the pen (SPEC 5, doubt 8)."""
        known: dict[str, list[str]] = {
            "tools": [name for one in record.skills for name in _names_of(one)],
            "resources": [name for one in record.resources for name in _names_of(one)],
            "prompts": [name for one in record.prompts for name in _names_of(one)],
        }
        found = []
        for kind, names in known.items():
            for prefix in ("expose", "private"):
                entries: Sequence[str] = getattr(self, f"{prefix}_{kind}")
                found += [
                    UnknownEntry(f"{prefix}_{kind}", entry, suggest(entry, names))
                    for entry in entries
                    if not _matches(tuple(names), (entry,))
                ]
        return found


def expose_resources(resources: Iterable[Resource], globs: Sequence[str]) -> tuple[Resource, ...]:
    """The resources, those that a glob names exposed and the others as they are."""
    return tuple(
        replace(one, visibility="exposed") if _matches(_names_of(one), globs) else one for one in resources
    )


def _names_of(thing: Skill | Resource | Prompt) -> tuple[str, ...]:
    if isinstance(thing, Skill):
        return (thing.id,)
    return (thing.name, thing.uri) if isinstance(thing, Resource) else (thing.name,)


def _choose(names: tuple[str, ...], expose: Sequence[str], private: Sequence[str]) -> Visibility:
    return "exposed" if _matches(names, expose) and not _matches(names, private) else "private"


def _matches(names: tuple[str, ...], globs: Sequence[str]) -> bool:
    # a name with brackets is no glob, but itself
    return any(name == glob or fnmatchcase(name, glob) for name in names for glob in globs)
