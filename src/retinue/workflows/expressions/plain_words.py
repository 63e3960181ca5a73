"""Says in plain words what the expression engine says in tokens of its grammar."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

DEFAULT_REMEDY = "expressions are CEL and read input, steps and loop"

_A_VALUE = "IDENTIFIER"
"""A token of the grammar that stands wherever a value may stand."""


class PlainWords(NamedTuple):
    """A problem and its remedy."""

    problem: str
    remedy: str = DEFAULT_REMEDY


def say_plainly(message: str, source: str) -> PlainWords:
    """The problem of an engine's message in one line, and what to do; unknown messages stay as they are."""
    match = re.match(r"(?P<place>at character \d+): (?:Syntax error: )?(?P<text>.*)", message, re.DOTALL)
    place, text = (f"{match['place']}: ", match["text"]) if match else ("", message)
    for pattern, say in _RULES:
        if rule_match := pattern.fullmatch(text):
            words = say(rule_match, source)
            return PlainWords(f"{place}{words.problem}", f"{words.remedy}; expressions are CEL")
    return PlainWords(message)


def _end(match: re.Match[str], source: str) -> PlainWords:
    expected = match["expected"]
    if _A_VALUE in expected:
        return PlainWords("it ends where a value is missing", "complete it")
    marks = re.findall(r"'([^']+)'", expected)
    return PlainWords(f"it ends where {' or '.join(marks)} is missing", "complete it")


def _missing(match: re.Match[str], source: str) -> PlainWords:
    where = "at the end" if match["at"] == "<EOF>" else f"before {match['at']}"
    return PlainWords(f"{match['mark']} is missing {where}", f"add {match['mark']}")


def _misplaced(match: re.Match[str], source: str) -> PlainWords:
    return PlainWords(f"{match['word']} does not belong here", "put an operator before it, or remove it")


def _no_token(match: re.Match[str], source: str) -> PlainWords:
    text = match["word"].strip()
    if text[:1] in "\"'":
        return PlainWords("a text without its closing quote", f"close it with {text[:1]}")
    operators = {"=": "compare with ==", "|": "write ||", "&": "write &&"}
    remedy = operators.get(text[:1], "remove it, or put quotes around a text")
    return PlainWords(
        f"{text[:1]} is no operator" if text[:1] in operators else f"{text} has no meaning", remedy
    )


def _undeclared(match: re.Match[str], source: str) -> PlainWords:
    name = match["name"]
    if re.search(rf"(?<![\w.]){re.escape(name)}\s*\(", source) or re.search(
        rf"\.{re.escape(name)}\s*\(", source
    ):
        return PlainWords(
            f"there is no function {name} with these arguments", "see the functions of CEL: cel.dev"
        )
    return PlainWords(f"nothing is named {name}", "read input, steps or loop, and put quotes around a text")


def _no_overload(match: re.Match[str], source: str) -> PlainWords:
    kinds = [kind.strip() for kind in match["kinds"].split(",")]
    operator = match["operator"].strip("_@")
    remedy = "convert one of them: double(…), int(…) or string(…)"
    return PlainWords(f"{operator} does not take {' and '.join(kinds)}", remedy)


_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], PlainWords]], ...] = (
    (re.compile(r"mismatched input '<EOF>' expecting (?P<expected>.*)"), _end),
    (re.compile(r"missing '(?P<mark>[^']+)' at '(?P<at>.*)'"), _missing),
    (re.compile(r"(?:extraneous|mismatched) input '(?P<word>.*)' expecting .*"), _misplaced),
    (re.compile(r"no viable alternative at input '(?P<word>.*)'"), _misplaced),
    (re.compile(r"token recognition error at: '(?P<word>.*)'", re.DOTALL), _no_token),
    (re.compile(r"undeclared reference to '(?P<name>.*)'"), _undeclared),
    (
        re.compile(
            r"found no matching overload for '(?P<operator>(?!_\?).*)' applied to '\((?P<kinds>.*)\)'"
        ),
        _no_overload,
    ),
    (
        re.compile(r"reserved identifier: (?P<word>\w+)"),
        lambda match, source: PlainWords(
            f"{match['word']} is a reserved word", "a choice is written: condition ? a : b"
        ),
    ),
)
