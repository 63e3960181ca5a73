"""Checks a card when it is published or read from a registry, beyond its syntax.

`parse_card` accepts any text with the form of a card, also from the store. These checks restrict new cards:
urls without user information, a bounded number of skills, and no characters that a terminal, an editor or a
model reads differently from a person.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import orjson

from retinue.core.errors import MalformedArtifactError
from retinue.core.record import AgentRecord

MAX_SKILLS = 1000

_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Control characters except tab and line ends, bidirectional controls, and the invisible tag characters."""

_MAY_HOLD_HIDDEN = re.compile(
    rb"\\[bf]|\\u(?:00[0189]|007f|202[a-e]|206[6-9]|db40)|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]"
    rb"|\xe2\x81[\xa6-\xa9]|\xf3\xa0[\x80\x81]",
    re.IGNORECASE,
)
"""Finds candidates in the bytes of a card, because looking at each text of many cards takes longer than
reading them."""


def check_card(record: AgentRecord, raw: bytes, *, reference: str) -> None:
    """Raise MalformedArtifactError, which names the field and the remedy, for a card that is not taken in.

    ``raw`` holds the bytes of the card from which ``record`` was parsed.
    """
    if len(record.skills) > MAX_SKILLS:
        problem = f"skills has {len(record.skills):,} entries; make it at most {MAX_SKILLS:,}"
        raise MalformedArtifactError(reference, problem)
    for endpoint in record.endpoints:
        if _has_user(endpoint.url):
            problem = "url holds user information (user@host); remove it, because everybody reads the card"
            raise MalformedArtifactError(reference, problem)
    if _MAY_HOLD_HIDDEN.search(raw):
        for path, text in _list_texts(orjson.loads(raw), ""):
            if (hidden := _HIDDEN.search(text)) is not None:
                name = unicodedata.name(hidden[0], "a control character")
                problem = f"{path} holds U+{ord(hidden[0]):04X} ({name}); remove it"
                raise MalformedArtifactError(reference, problem)


def _has_user(url: str) -> bool:
    try:
        return "@" in urlsplit(url).netloc
    except ValueError:
        return "@" in url


def _list_texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text of a JSON value with its path; the name of a field counts as a text of its object."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"a field name in {path or 'the card'}", key
            yield from _list_texts(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _list_texts(inner, f"{path}[{index}]")
