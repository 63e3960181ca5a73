"""Line charts as SVG, for pages: a title, two axes with a few ticks, and named curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 50
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df")

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis; ``is_log`` for values over several powers of ten."""

    label: str
    is_log: bool = False


def draw_chart(title: str, x: Axis, y: Axis, curves: Mapping[str, Curve], limit: float | None = None) -> str:
    """The chart as SVG; ``limit`` draws a dashed line at this height."""
    points = [point for curve in curves.values() for point in curve]
    x_of = _scale([p[0] for p in points], x.is_log, LEFT, WIDTH - RIGHT)
    heights = [p[1] for p in points] + ([limit] if limit is not None else []) + ([] if y.is_log else [0.0])
    y_of = _scale(heights, y.is_log, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for value in _ticks([p[0] for p in points], x.is_log):
        at = x_of(value)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>')
        parts.append(_text(at, HEIGHT - BOTTOM + 16, _short(value), "middle"))
    for value in _ticks(heights, y.is_log):
        at = y_of(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>')
        parts.append(_text(LEFT - 6, at + 4, _short(value), "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x.label, "middle"))
    parts.append(
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.label)}</text>'
    )
    if limit is not None:
        at = y_of(limit)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#999" '
            'stroke-dasharray="5 4"/>'
        )
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(a):.1f},{y_of(b):.1f}" for a, b in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(WIDTH - RIGHT + 8, TOP + 14 + 18 * number, name, "start", colour))
    return "\n".join([*parts, "</svg>", ""])


def _scale(values: Sequence[float], is_log: bool, low: float, high: float):  # type: ignore[no-untyped-def]
    least, most = min(values), max(values)
    if is_log:
        least, most = math.log10(least), math.log10(most)
    span = (most - least) or 1.0
    return lambda value: low + ((math.log10(value) if is_log else value) - least) / span * (high - low)


def _ticks(values: Sequence[float], is_log: bool) -> list[float]:
    least, most = min(values), max(values)
    if is_log:
        powers = range(math.ceil(math.log10(least) - 1e-9), math.floor(math.log10(most) + 1e-9) + 1)
        return [10.0**power for power in powers]
    step = 10 ** math.floor(math.log10((most - least) or 1.0))
    step = next(step * f for f in (0.2, 0.5, 1, 2, 5) if (most - least) / (step * f) <= 6)
    first = math.ceil(least / step - 1e-9)
    return [step * number for number in range(first, math.floor(most / step + 1e-9) + 1)]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
