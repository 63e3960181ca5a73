"""Renders the module with one typed function per skill, and compares it with one that is kept.

Equal skills give equal bytes: sections are sorted by skill and agent, and nothing depends on the time, on the
health of agents, or on their versions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from retinue.client.stubs.schema_types import TypeNames
from retinue.client.stubs.section import RESERVED, StubSkill, make_section, name_mesh_type
from retinue.client.stubs.source_text import (
    as_identifier,
    as_type_name,
    digest_of,
    is_identifier,
    render_comment,
)

MADE_BY = '"""Typed functions for the skills of a mesh, made by `retinue stubs`.'
"""Begins every generated module."""

_MARK = re.compile(r'^# skill (".*"): ([0-9a-f]+)$', re.MULTILINE)
_DIGEST_DIGITS = 64
_COLLISION_DIGITS = 6

_HEADER = """\
{made_by}

Do not edit. Make it again: {command}

Each function takes the mesh of `retinue.{connect}()`, the parameters of the skill and the options of
`mesh.call`.
\"\"\"
# skills: {count}
# digest: sha256:{digest}
# fmt: off
# ruff: noqa

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Never, NotRequired, TypeAlias, TypedDict, Unpack, cast

if TYPE_CHECKING:
    from {home} import {mesh}
    from retinue.core.budget import CallLimits
"""


def render_module(skills: Sequence[StubSkill], *, command: str, is_sync: bool = False) -> str:
    """The text of the module. ``command`` makes it again; ``is_sync`` makes functions without ``await``."""
    skills = sorted(skills, key=lambda skill: (skill.id, skill.agent is not None, skill.agent or ""))
    names = TypeNames(RESERVED)
    functions = _name_functions(skills, names)
    prefixes = _name_prefixes(functions)
    sections = [
        make_section(skill, function, prefix, names, is_sync=is_sync)
        for skill, function, prefix in zip(skills, functions, prefixes, strict=True)
    ]
    header = _HEADER.format(
        made_by=MADE_BY,
        command=render_comment(command).replace("\\", "/").replace('"', "'"),
        connect="connect_sync" if is_sync else "connect",
        count=len(skills),
        digest=digest_of("\n".join(skill.digest for skill in skills), _DIGEST_DIGITS),
        home=f"retinue.client.{'sync_connection' if is_sync else 'mesh_connection'}",
        mesh=name_mesh_type(is_sync),
    )
    text = "\n\n".join([header, *("\n".join(section.render()) + "\n" for section in sections)])
    # half of a surrogate pair in a text of an author is no UTF-8
    return text.encode("utf-8", "replace").decode()


def _name_functions(skills: Sequence[StubSkill], names: TypeNames) -> list[str]:
    """A name for each function; where several would be equal, only a skill of that very id keeps it."""
    identifiers = [as_identifier(skill.name) for skill in skills]
    identifiers = [f"{name}_" if name in RESERVED else name for name in identifiers]
    counts = Counter(identifiers)
    return [
        names.take(
            name
            if counts[name] == 1 or (skill.agent is None and name == skill.id)
            else f"{name}_{digest_of(skill.label, _COLLISION_DIGITS)}"
        )
        for name, skill in zip(identifiers, skills, strict=True)
    ]


def _name_prefixes(functions: Sequence[str]) -> list[str]:
    """The beginning of the names of the types of each function, different for each."""
    words = [as_type_name(function) for function in functions]
    prefixes = [word if is_identifier(word) else f"Skill{word}" for word in words]
    counts = Counter(prefixes)
    return [
        prefix if counts[prefix] == 1 else f"{prefix}{digest_of(function, _COLLISION_DIGITS)}"
        for prefix, function in zip(prefixes, functions, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Difference:
    """The skills that differ, each as its literal; all empty where the module was edited, or made by
    another version of Retinue."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


def compare_modules(kept: str, new: str) -> Difference | None:
    """The differences between the module that is kept and the new one; None for equal texts."""
    if kept == new:
        return None
    before, now = (dict(_MARK.findall(text)) for text in (kept, new))
    return Difference(
        tuple(skill for skill in now if skill not in before),
        tuple(skill for skill in before if skill not in now),
        tuple(skill for skill, digest in now.items() if before.get(skill, digest) != digest),
    )
