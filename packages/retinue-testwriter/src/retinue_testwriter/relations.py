"""Candidate properties: one function inverts another, or a function is idempotent.

Candidates are derived from names and types; probing keeps those that hold. Hypothesis's ghostwriter finds the
same pairs, but it imports the module, needs ``black``, and its strategies would have to be replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from retinue_testwriter.subject import ProbedTarget, Subject

_OPPOSITES = (
    ("encode", "decode"),
    ("escape", "unescape"),
    ("quote", "unquote"),
    ("quote", "split"),
    ("join", "split"),
    ("dumps", "loads"),
    ("compress", "decompress"),
    ("pack", "unpack"),
    ("hexlify", "unhexlify"),
    ("serialize", "deserialize"),
    ("format", "parse"),
    ("unparse", "parse"),
    ("encrypt", "decrypt"),
    ("indent", "dedent"),
    ("to", "from"),
)
_TURNED = re.compile(r"^(.+)_(to|2)_?(.+)$")


@dataclass(frozen=True, slots=True)
class Relation:
    """A property of one target; ``predicate`` uses ``result`` and the target's parameters."""

    name: str
    claim: str
    predicate: str
    challenges: tuple[str, ...] = ()
    """Expressions that derive other arguments from the first one, for which the property must hold too."""


def list_relations(subject: Subject, target: ProbedTarget) -> list[Relation]:
    """Candidate relations of a target, exact ones before inexact ones."""
    if target.operands or target.builds or target.is_async or "." in target.name or "(" in target.name:
        return list(_list_class_relations(subject, target))
    required = [parameter for parameter in target.parameters if parameter.required]
    functions = {other.name: other for other in subject.targets if "." not in other.name and not other.builds}
    relations: list[Relation] = []
    if len(required) == 1:
        call = f"{subject.module}.{target.name}(result)"
        challenges = _list_challenges(subject, target, required[0].name)
        title = f"{target.name}_twice_is_{target.name}_once"
        twice = _compare(title, f"doing {target.name} again changes nothing", call, "result")
        relations += [replace(relation, challenges=challenges) for relation in twice]
    for other in _list_opposites(target.name):
        if other not in functions or not required:
            continue
        takes = [parameter for parameter in functions[other].parameters if parameter.required]
        if len(takes) == 1:
            call = f"{subject.module}.{other}(result)"
        elif len(takes) == len(target.parameters):
            call = f"{subject.module}.{other}(*result)"
        else:
            continue
        back = required[0].name
        wanted = back if len(takes) == 1 else f"({', '.join(p.name for p in target.parameters)})"
        title, claim = f"{other}_undoes_{target.name}", f"{other} gives back what {target.name} was given"
        relations += _compare(title, claim, call, wanted)
        relations.append(Relation(title, claim, f"{call} == [{back}]"))
    return relations


def _list_class_relations(subject: Subject, target: ProbedTarget) -> Iterator[Relation]:
    """The constructor of a class inverts ``str`` of its instances."""
    if target.builds and [p for p in target.parameters if p.required]:
        again = f"{subject.module}.{target.builds}(str(result))"
        yield Relation(
            f"{target.builds}_is_made_again_from_its_text",
            f"a {target.builds} made from the text of another equals it",
            f"{again} == result",
        )


def _list_challenges(subject: Subject, target: ProbedTarget, first: str) -> tuple[str, ...]:
    """Arguments to which other functions of the module are applied twice.

    Random text rarely contains what one function escapes and another unescapes.
    """
    others = [
        other.name
        for other in subject.targets
        if other.name != target.name and "." not in other.name and not other.builds and not other.is_overload
    ]
    return tuple(f"{subject.module}.{name}({subject.module}.{name}({first}))" for name in others[:12])


def _compare(name: str, claim: str, call: str, wanted: str) -> list[Relation]:
    return [
        Relation(name, claim, f"{call} == {wanted}"),
        Relation(name, claim, f"{call} == pytest.approx({wanted}, abs=1e-6)"),
    ]


def _list_opposites(name: str) -> Iterator[str]:
    """Names of functions that may invert the function of this name."""
    turned = _TURNED.match(name)
    if turned:
        yield f"{turned[3]}_{turned[2]}_{turned[1]}"
    for word, other in _OPPOSITES:
        for here, there in ((word, other), (other, word)):
            parts = name.split("_")
            if here in parts:
                yield "_".join(there if part == here else part for part in parts)
            elif name.endswith(here) and name != here:
                yield name[: -len(here)] + there
