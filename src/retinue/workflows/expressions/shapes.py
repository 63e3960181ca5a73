"""How costly an expression could become, told from its words before it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from retinue.workflows.expressions.lexer import ROOTS, Reference, Token, iterate_tokens, read_reference

_MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})
_CHEAP = frozenset({"has", "dyn", "size", "int", "uint", "double", "bool", "type"})
_REPEATS = re.compile(r"\{(\d{1,4})?,?(\d{1,4})?\}")


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of an expression before it runs.

    ``macros`` = how many, ``nesting`` = how many at most inside each other; ``growth`` bounds how
    many times over the result can hold the data; ``items`` the length of a list that it writes out;
    ``operations`` = how often it goes through a value; ``patterns`` = the size of its regular
    expressions, None when one is not written out; ``path`` is set when the whole expression is one
    reference and needs no engine.
    """

    references: tuple[Reference, ...]
    macros: int
    nesting: int
    joins: int
    items: int
    growth: float
    operations: int
    patterns: int | None
    path: Reference | None


def read_shape(source: str) -> Shape:
    """What an expression reads, and how far it could multiply it.

    Only a macro binds a variable, so an expression with C macros and T joining marks (``+`` and
    commas beyond the macros' own) repeats a value at most ((T / (C + 1)) + 1) ** (C + 1) times.
    """
    words = [token for token in iterate_tokens(source) if token.kind != "space"]
    references: list[Reference] = []
    joins = commas = macros = operations = 0
    patterns: int | None = 0
    whole: Reference | None = None
    for index, token in enumerate(words):
        before = words[index - 1].text if index else ""
        after = words[index + 1].text if index + 1 < len(words) else ""
        if token.kind == "mark":
            joins += token.text == "+"
            commas += token.text == ","
            operations += (token.text in "=!<>") and before not in ("=", "!", "<", ">")
        elif token.kind != "name":
            continue
        elif token.text in ROOTS and before != ".":
            reference, end = read_reference(words, index)
            references.append(reference)
            if index == 0 and end == len(words):
                whole = reference
        elif after == "(" and before == "." and token.text in _MACROS:
            macros += 1
        elif token.text == "matches" and after == "(":
            cost = _read_pattern(words, index) if before == "." else None
            patterns = None if cost is None or patterns is None else patterns + cost
        elif token.text == "in" or (after == "(" and token.text not in _CHEAP):
            operations += 1
    multiplying = joins + max(0, commas - macros)
    growth = (multiplying / (macros + 1) + 1) ** (macros + 1)
    return Shape(
        references=tuple(references),
        macros=macros,
        nesting=_count_nesting(words),
        joins=joins,
        items=commas + 1,
        growth=growth,
        operations=operations,
        patterns=patterns,
        path=whole,
    )


def _count_nesting(words: list[Token]) -> int:
    """How many macros are open at once, at most."""
    open_marks: list[bool] = []
    most = 0
    for index, token in enumerate(words):
        if token.kind != "mark":
            continue
        if token.text in "([{":
            is_macro = index >= 2 and words[index - 1].text in _MACROS and words[index - 2].text == "."
            open_marks.append(is_macro and token.text == "(")
            most = max(most, sum(open_marks))
        elif token.text in ")]}" and open_marks:
            open_marks.pop()
    return most


def _read_pattern(words: list[Token], index: int) -> int | None:
    """The size of the automaton of ``.matches('pattern')``, None unless the pattern is written out."""
    inside = words[index + 2 : index + 4]
    if len(inside) < 2 or inside[0].kind != "text" or inside[1].text != ")":
        return None
    size = len(inside[0].text)
    for low, high in _REPEATS.findall(inside[0].text):
        size *= max(1, int(low or 1), int(high or 1))
    return size
