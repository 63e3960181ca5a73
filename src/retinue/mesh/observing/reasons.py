"""Renders why a call failed, for its audit row and its log line: the text of the error without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from retinue.core.errors import RetinueError
from retinue.core.text import hide_secrets, is_secret_name

MAX_REASON_LENGTH = 500
"""Maximum number of characters of a reason."""

_READ_LENGTH = 4 * MAX_REASON_LENGTH
"""Characters that are read, so that a secret at the cut is hidden as a whole."""

_MAX_DEPTH = 4
_MAX_ARGUMENTS = 200
_MIN_SECRET_LENGTH = 4


def write_reason(error: RetinueError, arguments: Any) -> str:
    """The first `MAX_REASON_LENGTH` characters of the error's text.

    Hidden are tokens, values that a secret name stands before, and the values of ``arguments`` with a secret
    name, because authors quote arguments in the errors that they raise.
    """
    text = error.message[:_READ_LENGTH]
    for secret in _list_secrets(arguments):
        text = text.replace(secret, "***")
    text = hide_secrets(text)
    return text if len(text) <= MAX_REASON_LENGTH else f"{text[: MAX_REASON_LENGTH - 1]}…"


def _list_secrets(arguments: Any) -> list[str]:
    """The text values below secret names, longest first."""
    secrets = {
        text
        for text, _ in zip(
            _iterate_secrets(arguments, False, _MAX_DEPTH), range(_MAX_ARGUMENTS), strict=False
        )
        if len(text) >= _MIN_SECRET_LENGTH
    }
    return sorted(secrets, key=len, reverse=True)


def _iterate_secrets(value: Any, is_secret: bool, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if is_secret:
            yield value
    elif depth and isinstance(value, Mapping):
        for key, inner in list(value.items())[:_MAX_ARGUMENTS]:
            yield from _iterate_secrets(inner, is_secret or is_secret_name(str(key)), depth - 1)
    elif depth and isinstance(value, list | tuple):
        for inner in value[:_MAX_ARGUMENTS]:
            yield from _iterate_secrets(inner, is_secret, depth - 1)
