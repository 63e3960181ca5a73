"""Renders the pages: templates, the formats of times and values, and the headers of every page."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from retinue.core.parts import without_bytes
from retinue.dashboard.drawings.step_levels import write_counts

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_SHOWN_CHARACTERS = 20_000
"""Characters of one value on a page; the rest of it is left out, with its size."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_ENCODER = json.JSONEncoder(indent=2, ensure_ascii=False, default=str)

MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def render_page(template: str, context: Mapping[str, Any], status: int = 200) -> Response:
    """A page as a response, with the headers that every page has."""
    text = _environment().get_template(template).render(context, now=time.time())
    return Response(text, status, HEADERS, media_type="text/html")


def render_data(data: Mapping[str, Any], status: int = 200) -> Response:
    """The data of a page as JSON, with the headers that every page has."""
    return Response(
        json.dumps(data, ensure_ascii=False, default=str), status, HEADERS, media_type="application/json"
    )


def read_static(name: str) -> Response | None:
    """A file of the folder ``static``; None where there is none."""
    content = _static_files().get(name)
    if content is None:
        return None
    headers = {"x-content-type-options": "nosniff", "cache-control": "max-age=300"}
    return Response(content, 200, headers, media_type=MEDIA_TYPES[name.rpartition(".")[2]])


@cache
def _static_files() -> Mapping[str, bytes]:
    folder = resources.files("retinue.dashboard") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@cache
def _environment() -> Environment:
    # at the first page: 4 MB that a hub without visitors does not need
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("retinue.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "since": lambda text: datetime.fromisoformat(text).timestamp(),
        "age": write_age,
        "clock": write_clock,
        "took": write_duration,
        "json": write_json,
        "plain": write_plain,
        "counts": write_counts,
        "lines": write_lines,
        "without_bytes": without_bytes,
    }
    return made


def write_age(at: float | None, now: float) -> str:
    """How long ago a time was, as "12 s", "3 min", "5 h" or "2 d"."""
    if at is None:
        return "–"
    seconds = max(0.0, now - at)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def write_clock(at: float | None) -> str:
    """A time in UTC, as ISO 8601 to the second."""
    return "–" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def write_duration(ms: float | None) -> str:
    """A duration of ``ms`` milliseconds for people."""
    if ms is None:
        return "–"
    if ms < 1_000:
        return f"{ms:.3g} ms" if ms < 100 else f"{ms:.0f} ms"
    return f"{ms / 1_000:.3g} s" if ms < 60_000 else f"{ms / 60_000:.3g} min"


def write_json(value: Any, limit: int = MAX_SHOWN_CHARACTERS) -> str:
    """A value as indented JSON, cut to ``limit`` characters; no more of it is encoded."""
    pieces: list[str] = []
    length = 0
    for piece in _ENCODER.iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > limit:
            break
    return write_lines("".join(pieces), limit)


def write_lines(text: Any, limit: int = MAX_SHOWN_CHARACTERS) -> str:
    """A foreign text with its lines, cut to ``limit`` characters; invisible characters as escapes."""
    whole = str(text)
    shown = "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in whole[:limit]
    )
    return shown if len(whole) <= limit else f"{shown}\n… the rest is left out"


def write_plain(text: Any, limit: int = 200) -> str:
    """A foreign text on one line: control and direction characters become visible, the end is cut."""
    shown = "".join(c if c.isprintable() else "�" for c in str(text)[: limit + 1].replace("\n", " "))
    return shown if len(shown) <= limit else f"{shown[:limit]}…"
