"""Checks a card when it is published or read from a registry, beyond its syntax.

`parse_card` accepts any text with the form of a card, also from the store. These checks restrict new cards:
urls without user information and without programs, a name that no hub has, a bounded number of skills, and no
characters that a terminal, an editor or a model reads differently from a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import orjson

from retinue.core.errors import MalformedArtifactError
from retinue.core.foreign_text import HIDDEN_BYTES, find_hidden
from retinue.core.record import HUB_NAME, AgentRecord

MAX_SKILLS = 1000

_SCRIPT_SCHEMES = ("javascript:", "vbscript:", "data:")
"""Urls that a browser runs instead of opening."""

_MAY_HOLD_SCRIPT = re.compile(rb"script\s*:|data\s*:|\\u|\\t|\\n\w{0,9}:", re.IGNORECASE)
_NOT_IN_URLS = re.compile("[\x00-\x20]")
"""Browsers leave these out of a url before they look at its scheme."""

_SCHEME_WITHIN = 200
_URL_FIELD = re.compile(r"(?:url|uri|href|link)s?(?:\[\d+\])?$", re.IGNORECASE)
"""Paths of fields that a page may show as a link."""


def check_card(record: AgentRecord, raw: bytes, *, reference: str, keeps_name: bool = True) -> None:
    """Raise MalformedArtifactError, which names the field and the remedy, for a card that is not taken in.

    ``raw`` holds the bytes of the card from which ``record`` was parsed. Without ``keeps_name`` the agent
    gets another name here, as an import does.
    """
    if keeps_name and record.name.casefold() == HUB_NAME:
        problem = f"name is {record.name!r}, which every hub has for itself; choose another name"
        raise MalformedArtifactError(reference, problem)
    if len(record.skills) > MAX_SKILLS:
        problem = f"skills has {len(record.skills):,} entries; make it at most {MAX_SKILLS:,}"
        raise MalformedArtifactError(reference, problem)
    for endpoint in record.endpoints:
        if _has_user(endpoint.url):
            problem = "url holds user information (user@host); remove it, because everybody reads the card"
            raise MalformedArtifactError(reference, problem)
        if _is_script(endpoint.url):
            raise MalformedArtifactError(reference, _describe_script("url"))
    may_hold_hidden, may_hold_script = HIDDEN_BYTES.search(raw), _MAY_HOLD_SCRIPT.search(raw)
    if may_hold_hidden or may_hold_script:
        for path, text in _list_texts(orjson.loads(raw), ""):
            if may_hold_hidden and (hidden := find_hidden(text)) is not None:
                raise MalformedArtifactError(reference, f"{path} holds {hidden}; remove it")
            if may_hold_script and _URL_FIELD.search(path) and _is_script(text):
                raise MalformedArtifactError(reference, _describe_script(path))


def _is_script(url: str) -> bool:
    return _NOT_IN_URLS.sub("", url[:_SCHEME_WITHIN]).lower().startswith(_SCRIPT_SCHEMES)


def _describe_script(path: str) -> str:
    return f"{path} is a url that a browser runs as a program; give an http or https url"


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
