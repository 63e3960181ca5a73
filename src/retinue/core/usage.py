"""The usage of calls: tokens and US dollars, as every protocol reports them, and their sums.

A usage is a JSON object. ``input_tokens``, ``output_tokens`` and ``cost_usd`` are what a call spent,
including its further calls; ``further`` has the same numbers of the further calls alone. ``reserved_tokens``
and ``reserved_usd`` are reservations of calls whose spending nobody reported; they count as spent. ``model``
names the model, ``models`` several. ``sources`` are the agents whose results the call has taken in, where
policies read that. ``estimated`` marks numbers that a provider did not report. ``mac`` is
the signature of a reply inside the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from retinue.core.allowance import Allowance, Amount, to_dollars, to_microdollars

Usage = Mapping[str, Any]

SPENT = ("input_tokens", "output_tokens", "cached_tokens", "cost_usd")
"""The numbers of a usage that a provider reports; cached tokens are among the input tokens."""

RESERVED = ("reserved_tokens", "reserved_usd")

FURTHER = "further"
"""The key of the part of a usage that further calls spent."""

MAX_MODELS = 20
_MAX_NAME = 256
_MAX_NUMBER = 10**12
_DIGITS = 9
"""Decimal places of a sum of dollars, without the inexact digits of floats."""


# ── sources ──

SOURCES = "sources"
"""The key of the agents whose results a call has taken in, in a usage and in a trace."""

UNKNOWN_SOURCE = "?"
"""Stands for sources that are unknown, or too many to be named."""

_MAX_SOURCES = 24
_MAX_SOURCES_BYTES = 400


class Sources(NamedTuple):
    """The agents whose results a chain of calls has taken in: those of the mesh, and foreign ones."""

    own: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.own or self.foreign)

    def to_json(self) -> dict[str, list[str]]:
        """The form in a usage and in a trace; without what is empty."""
        fields = {"own": list(self.own), "foreign": list(self.foreign)}
        return {name: names for name, names in fields.items() if names}


NO_SOURCES = Sources()


def read_sources(found: Any) -> Sources | None:
    """The sources in this form; None for any other value."""
    if not isinstance(found, Mapping):
        return None
    own, foreign = (found.get(name, []) for name in ("own", "foreign"))
    if not (isinstance(own, list) and isinstance(foreign, list)):
        return None
    if not all(isinstance(name, str) for name in (*own, *foreign)):
        return None
    return _limit(Sources(tuple(own), tuple(foreign)))


def add_sources(first: Sources, other: Sources) -> Sources:
    """The sources of both, each once."""
    foreign = dict.fromkeys((*first.foreign, *other.foreign))
    own = (name for name in dict.fromkeys((*first.own, *other.own)) if name not in foreign)
    return _limit(Sources(tuple(own), tuple(foreign)))


def _limit(sources: Sources) -> Sources:
    """The sources, or a mark that they are too many for the header that has them."""
    names = (*sources.own, *sources.foreign)
    # a character is at most six bytes in a header, as an escape of two halves
    size = sum(len(name) if name.isascii() else 12 * len(name) for name in names) + 3 * len(names)
    if len(names) <= _MAX_SOURCES and size <= _MAX_SOURCES_BYTES:
        return sources
    return Sources((UNKNOWN_SOURCE,), (UNKNOWN_SOURCE,) if sources.foreign else ())


def read_usage(found: Any) -> Usage | None:
    """The known facts of a usage that somebody reported: finite numbers, and names of models."""
    if not isinstance(found, Mapping):
        return None
    usage = _numbers_of(found, (*SPENT, *RESERVED))
    if isinstance(model := found.get("model"), str):
        usage["model"] = model[:_MAX_NAME]
    models = found.get("models")
    if isinstance(models, list | tuple):
        names = [name[:_MAX_NAME] for name in models[:MAX_MODELS] if isinstance(name, str)]
        if names:
            usage["models"] = names
    if found.get("estimated") is True:
        usage["estimated"] = True
    if isinstance(mac := found.get("mac"), str):
        usage["mac"] = mac[:_MAX_NAME]
    if SOURCES in found and (sources := read_sources(found[SOURCES])) is not None:
        usage[SOURCES] = sources.to_json()
    if isinstance(further := found.get(FURTHER), Mapping) and (part := _numbers_of(further, SPENT)):
        usage[FURTHER] = part
    return usage or None


def add_usage(first: Usage | None, other: Usage | None) -> Usage | None:
    """The sum of two usages, None where both are unknown."""
    if first is None or other is None:
        return other if first is None else first
    total = _sum(first, other, (*SPENT, *RESERVED))
    models = list(dict.fromkeys((*_models_of(first), *_models_of(other))))[:MAX_MODELS]
    if len(models) == 1:
        total["model"] = models[0]
    elif models:
        total["models"] = models
    if first.get("estimated") or other.get("estimated"):
        total["estimated"] = True
    if SOURCES in first or SOURCES in other:
        sources = (read_sources(usage.get(SOURCES)) or NO_SOURCES for usage in (first, other))
        total[SOURCES] = add_sources(*sources).to_json()
    if further := _sum(first.get(FURTHER) or {}, other.get(FURTHER) or {}, SPENT):
        total[FURTHER] = further
    return total


def sum_usages(usages: Iterable[Usage | None]) -> Usage | None:
    """The sum of usages, None where all are unknown."""
    total: Usage | None = None
    for usage in usages:
        total = add_usage(total, usage)
    return total


def as_further(usage: Usage) -> Usage:
    """The usage of a further call, as part of that of the call which made it."""
    spent = {key: usage[key] for key in SPENT if key in usage}
    return {**usage, FURTHER: spent} if spent else usage


def own_part(usage: Usage) -> Usage:
    """The numbers that the call itself spent, without its further calls.

    Sums over calls add these, because each further call is a call of its own.
    """
    further = usage.get(FURTHER)
    if not isinstance(further, Mapping):
        return usage
    own = _numbers_of(usage, SPENT)
    for key, number in _numbers_of(further, SPENT).items():
        own[key] = max(0, round(own.get(key, 0) - number, _DIGITS))
    return own


def amount_of(usage: Usage | None) -> Amount:
    """The amount that a usage counts in a budget."""
    if usage is None:
        return Amount()
    numbers = _numbers_of(usage, (*SPENT, *RESERVED))
    tokens = sum(int(numbers.get(key, 0)) for key in ("input_tokens", "output_tokens", "reserved_tokens"))
    return Amount(tokens, sum(to_microdollars(numbers.get(key, 0)) for key in ("cost_usd", "reserved_usd")))


def reserve_unknown(usage: Usage | None, share: Allowance) -> Usage | None:
    """The part of a call's share that counts as spent because nobody reported it, as a usage; None for none.

    ``usage`` None = no answer, so that nothing is known. Tokens without a cost leave the money unknown.
    """
    if usage is None:
        return render_reserved(share.amount, share)
    has_tokens = any(usage.get(key) for key in ("input_tokens", "output_tokens"))
    if share.microdollars is None or "cost_usd" in usage or not has_tokens:
        return None
    return render_reserved(share.amount.less(amount_of(usage))._replace(tokens=0), share)


def render_reserved(amount: Amount, share: Allowance) -> Usage | None:
    """An amount that counts as spent, as a usage; only what the share limits, None for nothing."""
    reserved: dict[str, Any] = {}
    if share.tokens is not None and amount.tokens:
        reserved["reserved_tokens"] = amount.tokens
    if share.microdollars is not None and amount.microdollars:
        reserved["reserved_usd"] = to_dollars(amount.microdollars)
    return reserved or None


def cap_usage(usage: Usage, share: Allowance) -> Usage:
    """A usage that a stranger reported: at most what the call was given, so that it takes nothing else."""
    numbers = _numbers_of(usage, (*SPENT, *RESERVED))
    if share.tokens is not None:
        left = max(share.tokens, 0)
        for key in ("input_tokens", "output_tokens", "reserved_tokens"):
            if key in numbers:
                numbers[key] = min(int(numbers[key]), left)
                left -= numbers[key]
    if share.microdollars is not None:
        left = max(share.microdollars, 0)
        for key in ("cost_usd", "reserved_usd"):
            if key in numbers and to_microdollars(numbers[key]) > left:
                numbers[key] = to_dollars(left)
            left = max(0, left - to_microdollars(numbers.get(key, 0)))
    return {**usage, **numbers}


def _models_of(usage: Usage) -> tuple[str, ...]:
    models = usage.get("models")
    if isinstance(models, list | tuple):
        return tuple(models)
    model = usage.get("model")
    return (model,) if isinstance(model, str) and model else ()


def _sum(first: Usage, other: Usage, keys: Iterable[str]) -> dict[str, Any]:
    total = _numbers_of(first, keys)
    for key, number in _numbers_of(other, keys).items():
        total[key] = total.get(key, 0) + number
    return {key: round(n, _DIGITS) if isinstance(n, float) else n for key, n in total.items()}


def _numbers_of(usage: Usage, keys: Iterable[str]) -> dict[str, Any]:
    return {
        key: value
        for key in keys
        if isinstance(value := usage.get(key), int | float)
        and not isinstance(value, bool)
        and 0 <= value < _MAX_NUMBER
    }
