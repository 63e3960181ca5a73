"""Reads ElizaOS character files (v1) as agents (W-23).

The file is JSON, usually with comments, which the reader has removed. Keys that mean nothing here (plugins,
clients, settings) are ignored; the key ``retinue`` holds what ElizaOS has no place for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import InvalidSettingError
from retinue.core.json_values import name_shape
from retinue.core.record import Example

CHARACTER_KEYS = frozenset(
    {
        "actions",
        "bio",
        "clients",
        "lore",
        "messageExamples",
        "modelProvider",
        "plugins",
        "style",
        "system",
        "username",
    }
)
"""A file with one of these, and without ``entry``, is a character."""

OWN_KEY = "retinue"

OWN_KEYS = ("bind", "model", "version", "expose")

MAX_DESCRIPTION = 500
_SHOWN_EXCHANGES = 5


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a character; it becomes a skill."""

    name: str
    description: str = ""
    similes: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Character:
    """A parsed character file; ``persona`` instructs a model to answer as this character.

    ``bind`` is the Python file with the functions of the actions, ``model`` the name of the model that
    answers the others, ``expose`` the names of the actions that MCP clients see; all from the key
    ``retinue``.
    """

    name: str
    title: str
    description: str
    topics: tuple[str, ...]
    actions: tuple[Action, ...]
    persona: str
    version: str | None = None
    bind: str | None = None
    model: str | None = None
    expose: tuple[str, ...] = ()


def is_character(facts: Mapping[str, Any]) -> bool:
    """Whether a JSON file is a character rather than an ``agent.json``."""
    return "entry" not in facts and not CHARACTER_KEYS.isdisjoint(facts)


def parse_character(facts: Mapping[str, Any], where: str) -> Character:
    """The character of a file; ``where`` names the file in errors. Raises InvalidSettingError."""
    read = _Reader(facts, where)
    title = read.text("name")
    if not title.strip():
        raise InvalidSettingError(f"{where}: name", "it is missing", remedy='write "name": "Jules"')
    own = read.inner(OWN_KEY)
    for key in own.facts:
        if key not in OWN_KEYS:
            known = ", ".join(OWN_KEYS)
            raise InvalidSettingError(f"{where}: {OWN_KEY}.{key}", "unknown key", remedy=f"known are {known}")
    bio = read.lines("bio")
    actions = tuple(_parse_action(reader) for reader in read.inners("actions"))
    names = [action.name for action in actions]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSettingError(f"{where}: actions", f"{name!r} is there twice", remedy="rename one")
    return Character(
        name=re.sub(r"[\s/@]+", "-", title.strip()),
        title=title.strip(),
        description=_shorten(" ".join(bio)) or _shorten(read.text("system")),
        topics=read.texts("topics"),
        actions=actions,
        persona=_write_persona(title.strip(), read, bio),
        version=own.text("version") or None,
        bind=own.text("bind") or None,
        model=own.text("model") or None,
        expose=own.texts("expose"),
    )


def _parse_action(read: _Reader) -> Action:
    name = read.text("name")
    if not name.strip():
        raise InvalidSettingError(f"{read.where}name", "it is missing", remedy='write "name": "DO_IT"')
    return Action(name.strip(), read.text("description"), read.texts("similes"), tuple(_parse_examples(read)))


def _parse_examples(read: _Reader) -> list[Example]:
    """Requests for the action in people's words: the first message of each conversation."""
    return [Example(text=exchange[0][1]) for exchange in read.conversations("examples") if exchange]


def _write_persona(name: str, read: _Reader, bio: tuple[str, ...]) -> str:
    style = read.inner("style")
    parts = [read.text("system"), f"You are {name}. Stay this person in every answer."]
    for heading, lines in (
        ("About you", bio),
        ("What you have done", read.lines("lore")),
        ("How you write", (*style.texts("all"), *style.texts("chat"))),
        ("You are", read.texts("adjectives")),
    ):
        if lines:
            parts.append("\n".join((f"{heading}:", *(f"- {line}" for line in lines))))
    for exchange in read.conversations("messageExamples")[:_SHOWN_EXCHANGES]:
        dialogue = [f"{who}: {text}" for who, text in exchange]
        parts.append("\n".join(("An example of how you talk:", *dialogue)))
    return "\n\n".join(part for part in parts if part.strip())


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the keys of one object; ``where`` is put before a key in errors."""

    facts: Mapping[str, Any]
    file: str
    place: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}: {self.place}"

    def text(self, key: str) -> str:
        value = self.facts.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._fault(key, value, "write a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.facts.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self._fault(key, value, "write a list of strings")
        return tuple(text.strip() for text in value if text.strip())

    def lines(self, key: str) -> tuple[str, ...]:
        """As `texts`, or one text (ElizaOS allows both)."""
        value = self.facts.get(key)
        if isinstance(value, str):
            return (value.strip(),) if value.strip() else ()
        return self.texts(key)

    def inner(self, key: str) -> _Reader:
        value = self.facts.get(key)
        if value is None:
            return _Reader({}, self.file, f"{self.place}{key}.")
        if not isinstance(value, dict):
            raise self._fault(key, value, "write an object")
        return _Reader(value, self.file, f"{self.place}{key}.")

    def inners(self, key: str) -> list[_Reader]:
        value = self.facts.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(facts, dict) for facts in value):
            raise self._fault(key, value, "write a list of objects")
        return [_Reader(facts, self.file, f"{self.place}{key}[{at}].") for at, facts in enumerate(value)]

    def conversations(self, key: str) -> list[list[tuple[str, str]]]:
        """Lists of messages as pairs of who and text; messages without a text are left out."""
        value = self.facts.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(exchange, list) for exchange in value):
            raise self._fault(key, value, "write a list of conversations, each a list of messages")
        return [[pair for message in exchange if (pair := _read_message(message))] for exchange in value]

    def _fault(self, key: str, value: Any, remedy: str) -> InvalidSettingError:
        return InvalidSettingError(f"{self.where}{key}", f"it is {name_shape(value)}", remedy=remedy)


def _read_message(message: Any) -> tuple[str, str] | None:
    """Who said what: ``{"user": …, "content": {"text": …}}``; ``name`` in place of ``user`` is newer."""
    if isinstance(message, str):
        return ("user", message) if message.strip() else None
    if not isinstance(message, dict):
        return None
    content = message.get("content")
    text = content.get("text") if isinstance(content, dict) else content
    who = message.get("user") or message.get("name") or "user"
    return (str(who), text) if isinstance(text, str) and text.strip() else None


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION else text[: MAX_DESCRIPTION - 1].rstrip() + "…"
