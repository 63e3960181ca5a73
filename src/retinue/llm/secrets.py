"""Removes keys from texts that leave the process of a model agent."""

from __future__ import annotations

import re
from collections.abc import Iterable

from retinue.core.text import hide_tokens

HIDDEN = "[key]"
MAX_CHARACTERS = 500
"""What is kept of a text that somebody else wrote."""


_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Redactor:
    """Replaces known keys and whatever looks like a token in a text, removes colours, and shortens it."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = sorted((key for key in keys if key), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        text = _COLOURS.sub("", text)
        for key in self._keys:
            text = text.replace(key, HIDDEN)
        text = hide_tokens(text)
        return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"
