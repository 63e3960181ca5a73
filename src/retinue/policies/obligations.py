"""What a policy with an effect asks for besides a person: a limit of calls, and values that are masked.

``@limit("5 per hour by origin")`` counts the calls that the policy concerns, in any hour that ends now.
``@results("email card /customers/*/name")`` and ``@arguments("key")`` name what is masked: kinds of sensitive
data, and JSON Pointers, in which ``*`` stands for each element or name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from retinue.guards.fields import Masks, Pointer, read_pointer
from retinue.guards.sensitive import KINDS, SensitiveKind

CountedBy = Literal["principal", "origin", "skill"]

MAX_CALLS = 10_000
"""The greatest number of a limit, because the time of each counted call is kept."""

MAX_WINDOW_S = 31 * 86400.0
MAX_POINTERS = 100

_UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
NO_MASKS = Masks()

_LIMIT = re.compile(
    r"(?P<calls>[0-9]{1,6}) per (?:(?P<number>[0-9]{1,6}) )?(?P<unit>second|minute|hour|day)s?"
    r"(?: by (?P<by>[a-z]+(?: and [a-z]+){0,2}))?"
)


@dataclass(frozen=True, slots=True)
class CallLimit:
    """At most ``calls`` in each window of ``window_s`` seconds; one count for each value of ``by``.

    Without ``by`` all calls that the policy concerns are counted together.
    """

    calls: int
    window_s: float
    by: tuple[CountedBy, ...] = ()
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Redaction:
    """The values that a policy masks in the arguments and in the result of a call."""

    arguments: Masks = NO_MASKS
    results: Masks = NO_MASKS


def read_limit(text: str) -> CallLimit:
    """The limit of an annotation; raises ValueError, whose text says what is wrong."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise ValueError(f"@limit is {text!r}")
    calls, window_s = int(match["calls"]), int(match["number"] or 1) * _UNITS[match["unit"]]
    if not 1 <= calls <= MAX_CALLS:
        raise ValueError(f"@limit counts {calls:,} calls; it counts 1 to {MAX_CALLS:,}")
    if not 0 < window_s <= MAX_WINDOW_S:
        raise ValueError(f"@limit is {text!r}; its window is 1 second to 31 days")
    by = tuple(match["by"].split(" and ")) if match["by"] else ()
    unknown = sorted(set(by) - set(get_args(CountedBy)))
    if unknown or len(set(by)) < len(by):
        raise ValueError(f"@limit is {text!r}; calls are counted by principal, origin and skill, each once")
    return CallLimit(calls, window_s, by, text)


def read_masks(name: str, text: str) -> Masks:
    """The masks of an annotation; raises ValueError, whose text says what is wrong."""
    kinds: list[SensitiveKind] = []
    pointers: list[Pointer] = []
    for word in text.replace(",", " ").split():
        if word.startswith("/"):
            pointers.append(read_pointer(word))
        elif word in KINDS:
            kinds.append(word)
        else:
            raise ValueError(f"@{name} names {word!r}, which is no kind and no JSON Pointer")
    if not (kinds or pointers):
        raise ValueError(f"@{name} is empty")
    if len(pointers) > MAX_POINTERS:
        raise ValueError(f"@{name} has {len(pointers)} JSON Pointers, and at most {MAX_POINTERS} are read")
    return Masks(tuple(dict.fromkeys(kinds)), tuple(dict.fromkeys(pointers)))
