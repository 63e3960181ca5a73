"""Cleans records of foreign sources: removes hidden characters, bounds names and texts.

The directory does this for every listing that is not a card with bytes of its own, whatever its source,
because a registry's cards with such characters are refused when they are read (`retinue.cards.card_checks`).
A descriptive text is stripped and cut. A skill, resource or prompt is left out where its name, URI or
arguments would have to change, because its owner knows it by these only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from retinue.core.foreign_text import cut_text, find_hidden, strip_hidden
from retinue.core.record import AgentRecord, Prompt, Resource, Schema, Skill, Trait

MAX_NAME = 256
"""Characters of the name of a skill or prompt; one with a longer name is left out."""

MAX_URI = 8_192
MAX_TITLE = 256
MAX_DESCRIPTION = 20_000
"""Characters of a description that are kept."""

MAX_TOOL_BYTES = 500_000
"""Bytes of the JSON of one tool, with its schemas."""

MAX_TRAIT_VALUE = 100_000
"""Characters of a trait that is a text."""

MAX_NOTES = 20
_SHOWN_NAME = 60

_DESCRIPTIVE = frozenset({"description", "title", "$comment"})
_NAMING = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords of JSON Schema whose keys are names, which may be called like a descriptive keyword."""

Item = TypeVar("Item", Skill, Resource, Prompt, Trait)


class _RefusedError(ValueError):
    """This part of a record is left out; the message says why."""


@dataclass(slots=True)
class _Notes:
    """The changes of a record, as sentences."""

    sentences: list[str] = field(default_factory=list)
    stripped: set[str] = field(default_factory=set)

    def text(self, text: str, limit: int, what: str) -> str:
        """A descriptive text without hidden characters, cut to ``limit``."""
        hidden = find_hidden(text)
        if hidden is not None:
            text = strip_hidden(text)
            self._add(what, f"{what} held {hidden}, which is removed")
        if len(text) > limit:
            self._add(what, f"{what} has {len(text):,} characters and is cut")
        return cut_text(text, limit)

    def keep(self, items: Sequence[Item], clean: Callable[[Item, _Notes], Item]) -> tuple[Item, ...]:
        """The items as ``clean`` leaves them, without those that it refuses."""
        kept = []
        for item in items:
            try:
                kept.append(clean(item, self))
            except _RefusedError as refusal:
                self._add(str(refusal), f"{refusal}; it is left out")
        return tuple(kept)

    def _add(self, key: str, sentence: str) -> None:
        if key not in self.stripped and len(self.sentences) < MAX_NOTES:
            self.stripped.add(key)
            self.sentences.append(sentence)


def clean_record(record: AgentRecord) -> tuple[AgentRecord, tuple[str, ...]]:
    """The record fit to be shown, and a sentence about each change; the same record where it is already.

    Its cost grows with its texts: about 1 ms for a server with a hundred tools.
    """
    notes = _Notes()
    cleaned = replace(
        record,
        title=record.title and notes.text(record.title, MAX_TITLE, "its title"),
        description=notes.text(record.description, MAX_DESCRIPTION, "its description"),
        topics=tuple(notes.text(topic, MAX_TITLE, "a topic") for topic in record.topics),
        skills=notes.keep(record.skills, _clean_skill),
        traits=notes.keep(record.traits, _clean_trait),
        resources=notes.keep(record.resources, _clean_resource),
        prompts=notes.keep(record.prompts, _clean_prompt),
    )
    return (cleaned, tuple(notes.sentences)) if notes.sentences else (record, ())


def bound_tools(tools: Iterable[Mapping[str, Any]]) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """The tools of a server with bounded texts, for storing them, and the number of those left out.

    A tool is left out whose name is longer than `MAX_NAME` or whose JSON is larger than `MAX_TOOL_BYTES`.
    """
    kept: list[Mapping[str, Any]] = []
    left_out = 0
    for tool in tools:
        description = tool.get("description")
        if isinstance(description, str) and len(description) > MAX_DESCRIPTION:
            tool = {**tool, "description": cut_text(description, MAX_DESCRIPTION)}
        if len(str(tool.get("name"))) <= MAX_NAME and _is_small(tool):
            kept.append(tool)
        else:
            left_out += 1
    return tuple(kept), left_out


def _is_small(tool: Mapping[str, Any]) -> bool:
    try:
        return len(orjson.dumps(tool)) <= MAX_TOOL_BYTES
    except orjson.JSONEncodeError:  # nested too deep
        return False


def _clean_skill(skill: Skill, notes: _Notes) -> Skill:
    what = f"skill {_check_name(skill.id, 'skill')}"
    return replace(
        skill,
        title=skill.title and notes.text(skill.title, MAX_TITLE, f"the title of {what}"),
        description=notes.text(skill.description, MAX_DESCRIPTION, f"the description of {what}"),
        tags=tuple(notes.text(tag, MAX_TITLE, f"a tag of {what}") for tag in skill.tags),
        similes=tuple(notes.text(simile, MAX_TITLE, f"a simile of {what}") for simile in skill.similes),
        input_schema=_clean_schema(skill.input_schema, notes, what),
        output_schema=_clean_schema(skill.output_schema, notes, what),
        examples=tuple(
            replace(
                example,
                text=example.text and notes.text(example.text, MAX_DESCRIPTION, f"an example of {what}"),
            )
            for example in skill.examples
            if not _holds_hidden([example.arguments, example.result])
        ),
    )


def _clean_trait(trait: Trait, notes: _Notes) -> Trait:
    what = f"trait {_check_name(trait.name, 'trait')}"
    value = trait.value
    if isinstance(value, str):
        value = notes.text(value, MAX_TRAIT_VALUE, f"the value of {what}")
    elif _holds_hidden(value):
        raise _RefusedError(f"the value of {what} holds hidden characters")
    return replace(
        trait,
        description=notes.text(trait.description, MAX_DESCRIPTION, f"the description of {what}"),
        value=value,
    )


def _clean_resource(resource: Resource, notes: _Notes) -> Resource:
    if len(resource.uri) > MAX_URI or (hidden := find_hidden(resource.uri)) is not None:
        problem = "is too long" if len(resource.uri) > MAX_URI else f"holds {hidden}"
        raise _RefusedError(f"the URI of resource {_show(resource.uri)} {problem}")
    what = f"resource {_show(resource.uri)}"
    return replace(
        resource,
        name=notes.text(resource.name, MAX_NAME, f"the name of {what}"),
        mime=notes.text(resource.mime, MAX_NAME, f"the type of {what}"),
        title=resource.title and notes.text(resource.title, MAX_TITLE, f"the title of {what}"),
        description=notes.text(resource.description, MAX_DESCRIPTION, f"the description of {what}"),
    )


def _clean_prompt(prompt: Prompt, notes: _Notes) -> Prompt:
    what = f"prompt {_check_name(prompt.name, 'prompt')}"
    for argument in prompt.arguments:
        _check_name(argument.name, f"argument of {what}")
    return replace(
        prompt,
        title=prompt.title and notes.text(prompt.title, MAX_TITLE, f"the title of {what}"),
        description=notes.text(prompt.description, MAX_DESCRIPTION, f"the description of {what}"),
        arguments=tuple(
            replace(
                argument,
                description=notes.text(argument.description, MAX_DESCRIPTION, f"an argument of {what}"),
            )
            for argument in prompt.arguments
        ),
    )


def _clean_schema(schema: Schema | None, notes: _Notes, what: str) -> Schema | None:
    """The schema with clean descriptions; refuses hidden characters elsewhere."""

    def clean(value: Any, *, has_names: bool) -> Any:
        if isinstance(value, str):
            if (hidden := find_hidden(value)) is not None:
                raise _RefusedError(f"the schema of {what} holds {hidden}")
            return value
        if isinstance(value, Mapping):
            return {key: clean_member(key, inner, has_names=has_names) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [clean(inner, has_names=False) for inner in value]
        return value

    def clean_member(key: Any, value: Any, *, has_names: bool) -> Any:
        clean(str(key), has_names=False)
        if not has_names and key in _DESCRIPTIVE and isinstance(value, str):
            return notes.text(value, MAX_DESCRIPTION, f"a text in the schema of {what}")
        return clean(value, has_names=not has_names and key in _NAMING)

    try:
        cleaned = clean(schema, has_names=False)
        return schema if cleaned == schema else cleaned
    except RecursionError:
        raise _RefusedError(f"the schema of {what} is nested too deep") from None


def _check_name(name: str, kind: str) -> str:
    """The name, cut for a sentence; refuses a name that cannot be shown."""
    if (hidden := find_hidden(name)) is not None:
        raise _RefusedError(f"the name of {kind} {_show(name)} holds {hidden}")
    if len(name) > MAX_NAME:
        raise _RefusedError(f"the name of {kind} {_show(name)} has {len(name):,} characters")
    return _show(name)


def _show(name: str) -> str:
    return cut_text(strip_hidden(name), _SHOWN_NAME)


def _holds_hidden(value: Any) -> bool:
    """Whether a JSON value has hidden characters, or is nested too deep to tell."""
    try:
        return any(find_hidden(text) is not None for text in _list_texts(value))
    except RecursionError:
        return True


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _list_texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_texts(inner)
