"""Kinds of values in a request, such as dates and addresses, and the parameters that take them.

Of two skills about one subject, the one with a parameter for the values of the request serves it more often.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from types import MappingProxyType

from retinue.mesh.search.words import stem

_DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday|today|tomorrow|yesterday|tonight"
_MONTHS = "january|february|march|april|june|july|august|september|october|november|december"
_ENDINGS = "txt|md|pdf|csv|jsonl?|py|docx?|xlsx?|pptx?|png|jpe?g|gif|html?|ya?ml|log|zip|mp[34]|wav|sql"

_PATTERNS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "mail": re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}\.\w+"),
        "address": re.compile(
            r"https?://\S+|(?<!\S)www\.\S+|(?<!\S)[\w-]{1,64}\.(?:com|org|net|io|dev)\b", re.I
        ),
        "path": re.compile(
            rf"(?<!\S)(?:~|\.{{1,2}})?/[\w.\-/]+|(?<![\w.-])[\w-]{{1,64}}\.(?:{_ENDINGS})\b", re.I
        ),
        "date": re.compile(
            r"\b\d{4}-\d\d(?:-\d\d)?\b|\b\d{1,2}[:.]\d\d\b|\b(?:next|last|this) (?:week|month|year)\b"
            rf"|\b(?:{_DAYS}|{_MONTHS})\b",
            re.I,
        ),
        "quoted": re.compile(r"\"[^\"]{2,200}\"|(?<!\w)'[^']{3,200}'(?!\w)|“[^”]{2,200}”"),
        "number": re.compile(r"(?<![\w.,-])\d+(?:[.,]\d+)*(?![\w-])"),
    }
)
"""A kind of value → its form, in the order in which the values are taken out of a request."""

_STEMS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        kind: frozenset(stem(word) for word in words.split())
        for kind, words in {
            "mail": "email mail recipient cc bcc participant attendee",
            "address": "url uri link href website site webpage",
            "path": "path file filename filepath directory folder",
            "date": "date time day deadline datetime timestamp start end due until since month year",
            "quoted": "title text body content query subject message comment summary term phrase name label",
            "number": "number count amount limit price quantity id size level percent port rating",
        }.items()
    }
)
"""A kind of value → the stems of parameters that take it."""

_READ_CHARS = 2_000


def list_value_kinds(request: str) -> frozenset[str]:
    """The kinds of values in a request: mail, address, path, date, quoted, number."""
    kinds, rest = set[str](), request[:_READ_CHARS]
    for kind, pattern in _PATTERNS.items():
        shorter = pattern.sub(" ", rest)
        if shorter != rest:
            kinds.add(kind)
            rest = shorter
    return frozenset(kinds)


def share_taken(kinds: Set[str], parameters: str) -> float:
    """The share of these kinds that the parameters with these stems take, from 0 to 1."""
    stems = parameters.split(" ")
    return sum(not _STEMS[kind].isdisjoint(stems) for kind in kinds) / len(kinds)
