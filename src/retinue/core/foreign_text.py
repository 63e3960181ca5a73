"""Hidden and control characters, which foreign texts must not contain (decision 0029)."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_RANGES = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # controls except tab and line ends, ESC among them
    "\u180e\u200b\u2060-\u206f\ufeff\ufff9-\ufffb"  # no width, invisible operators, isolates
    "\u2028\u2029"  # line ends that are none elsewhere
    "\u202a-\u202e"  # directions of writing
    "\U000e0000-\U000e0fff"  # tags and the supplement of variation selectors
)
_HIDDEN = re.compile(f"[{_RANGES}]")

HIDDEN_BYTES = re.compile(
    rb"\\[bf]|\\u(?:00[0189]|007f|180e|200b|202[89a-e]|206|feff|fff[9ab]|db4[0-3])|\x7f|\xc2[\x80-\x9f]"
    rb"|\xe1\xa0\x8e|\xe2\x80[\x8b\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf|\xef\xbf[\xb9-\xbb]|\xf3\xa0",
    re.IGNORECASE,
)
"""Finds candidates in the bytes of a JSON document, because looking at each text of many cards takes longer
than reading them.
"""

ELLIPSIS = "…"


def find_hidden(text: str) -> str | None:
    """The first hidden character of a text as ``U+200B (ZERO WIDTH SPACE)``; None where it has none."""
    hidden = _HIDDEN.search(text)
    if hidden is None:
        return None
    return f"U+{ord(hidden[0]):04X} ({unicodedata.name(hidden[0], 'a control character')})"


def strip_hidden(text: str) -> str:
    """The text without hidden characters."""
    return _HIDDEN.sub("", text)


def strip_values(value: Any) -> Any:
    """A JSON value whose texts and keys have no hidden characters."""
    if isinstance(value, str):
        return strip_hidden(value)
    if isinstance(value, dict):
        return {strip_hidden(str(key)): strip_values(inner) for key, inner in value.items()}
    return [strip_values(inner) for inner in value] if isinstance(value, list) else value


def cut_text(text: str, limit: int) -> str:
    """The text, cut to ``limit`` characters, the last of which says so."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS
