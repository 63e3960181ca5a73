"""Renders durations for people."""

from __future__ import annotations

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
"""The names of units with their seconds, the largest first."""

_EXACT_BELOW_S = 60.0
"""Shorter durations are given with three digits, longer ones in whole units."""


def render_duration(seconds: float) -> str:
    """A duration in at most two units: ``0.05 s``, ``1.5 s``, ``5 min``, ``1 h 30 min``, ``6 d 20 h``."""
    if seconds < _EXACT_BELOW_S:
        exact = f"{seconds:.3g}"
        if float(exact) < _EXACT_BELOW_S:
            return f"{exact} s"
    left = round(seconds)
    # Rounded to the smaller of the two units, so that 59 min 59.7 s is 1 h.
    largest = next(place for place, (_, size) in enumerate(_UNITS) if left >= size)
    smallest = _UNITS[min(largest + 1, len(_UNITS) - 1)][1]
    left = round(left / smallest) * smallest
    parts = []
    for name, size in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])


def render_elapsed(seconds: float) -> str:
    """A measured duration: in tenths of seconds below a minute, else as `render_duration`."""
    tenths = f"{seconds:.1f}"
    return f"{tenths} s" if float(tenths) < _EXACT_BELOW_S else render_duration(seconds)
