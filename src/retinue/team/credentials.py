"""Recognizes the texts of settings that hold a credential, by their names and by the forms of their URLs."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

SENSITIVE = re.compile(
    r"pass(word|wd|phrase)?($|[^a-z])|secret|token|api[-_]?key|access[-_]?key|(^|[-_])key($|[-_])|credential|"
    r"auth(orization)?($|[-_])|cookie|private|dsn|database[-_]?url|connection[-_]?string|signature",
    re.IGNORECASE,
)
"""Names whose literal values are taken for secrets."""

_PLACEHOLDER = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#\s\"']*)[^?#\s\"']*\??(?P<query>[^#\s\"']*)"
)


def holds_credential(text: str) -> bool:
    """Whether a text has a URL with a literal password, or with a literal key in its query.

    The user of an HTTP URL without a password is a token. ``${NAME}`` stands for a secret and is no literal.
    """
    for match in _URL.finditer(text):
        user, at, _ = match["authority"].rpartition("@")
        _, colon, password = user.partition(":")
        is_token = not colon and match["scheme"].lower().endswith(("http", "https"))
        if at and _PLACEHOLDER.sub("", user if is_token else password):
            return True
        for name, value in parse_qsl(match["query"]):
            if SENSITIVE.search(name) and _PLACEHOLDER.sub("", value):
                return True
    return False
