"""Pure: converts a message to a call of a skill, and the result to parts.

A2A has neither a field for the skill nor one for its arguments. A message names both in a data part
``{"skill": …, "arguments": {…}}`` or in its metadata, under the same keys. Without a name the agent's only
skill is called. Text is the skill's only required string (specification 2, doubt 4), and files are its
argument ``files``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.a2a.codec.faults import content_type_not_supported, invalid_parameters
from retinue.a2a.codec.requests import IncomingMessage
from retinue.core.call import Part
from retinue.core.parts import is_made_of_parts
from retinue.core.record import Skill
from retinue.core.session_field import fill_session
from retinue.mesh.schema.text_place import find_text_place, is_string

SKILL_KEY = "skill"
ARGUMENTS_KEY = "arguments"
REPLY_KEY = "reply"
"""``"message"`` in the metadata: answer with a message instead of a task, if the call needs no task."""

FILES = "files"
"""The argument that the files of a message are, for skills that have it: a list of A2A parts."""

PERFORMATIVE_KEY = "performative"
"""A data part with this key is an envelope of seed 000."""

_SHOWN_SKILLS = 20


@dataclass(frozen=True, slots=True)
class Named:
    """The skill that a message names, and its arguments.

    ``arguments`` None = none were given as data; ``text`` then stands for them. ``files`` are the parts
    with bytes or a url, ``context`` is the conversation of the message.
    """

    skill: str | None
    arguments: Any
    text: str | None
    files: tuple[Mapping[str, Any], ...] = ()
    context: str | None = None


def find_envelope(message: IncomingMessage) -> dict[str, Any] | None:
    """The envelope in a message: its first data part with a performative."""
    for part in message.parts:
        data = part.get("data")
        if isinstance(data, dict) and PERFORMATIVE_KEY in data:
            return data
    return None


def wants_message(message: IncomingMessage, metadata: Mapping[str, Any]) -> bool:
    """Whether the client asks for a message as the answer."""
    return "message" in (message.metadata.get(REPLY_KEY), metadata.get(REPLY_KEY))


def read_named(message: IncomingMessage, metadata: Mapping[str, Any]) -> Named:
    """The facts about the call in a message; raises A2aError."""
    skill = _text_at(message.metadata, SKILL_KEY) or _text_at(metadata, SKILL_KEY)
    arguments = message.metadata.get(ARGUMENTS_KEY, metadata.get(ARGUMENTS_KEY))
    for part in message.parts:
        if "data" not in part:
            continue
        data = with_whole_numbers(part["data"])
        if isinstance(data, dict) and isinstance(data.get(SKILL_KEY), str) and data.keys() <= _NAMING:
            skill = data[SKILL_KEY]
            arguments = data.get(ARGUMENTS_KEY, arguments)
        elif arguments is None:
            arguments = data
    texts = [part["text"] for part in message.parts if "text" in part]
    files = tuple(part for part in message.parts if "raw" in part or "url" in part)
    return Named(skill, arguments, "\n".join(texts) if texts else None, files, message.context_id)


_NAMING = frozenset({SKILL_KEY, ARGUMENTS_KEY})


def choose_skill(named: Named, skills: Sequence[Skill]) -> str:
    """The id of the skill to call, among the visible skills; raises A2aError when it is not clear."""
    if named.skill is not None:
        return named.skill
    if len(skills) == 1:
        return skills[0].id
    if not skills:
        raise invalid_parameters("this agent shows you no skill")
    shown = ", ".join(skill.id for skill in skills[:_SHOWN_SKILLS])
    more = f" and {len(skills) - _SHOWN_SKILLS} more" if len(skills) > _SHOWN_SKILLS else ""
    raise invalid_parameters(
        f"this agent has several skills ({shown}{more}); name one, with a data part "
        '{"skill": …, "arguments": {…}} or with "skill" in the metadata of the message'
    )


def make_arguments(named: Named, skill: Skill | None) -> Any:
    """The arguments of the call; ``skill`` None = not known here, the dispatch finds it.

    The context of the message is the session of a skill that takes one. Raises A2aError where text has no
    place in the skill's schema.
    """
    schema = skill.input_schema if skill is not None else None
    return fill_session(_read_arguments(named, skill, schema), schema, named.context)


def _read_arguments(named: Named, skill: Skill | None, schema: Mapping[str, Any] | None) -> Any:
    arguments = named.arguments
    if named.files:
        arguments = _with_files(named, schema)
    if named.text is None or (arguments is not None and not isinstance(arguments, dict)):
        return {} if arguments is None else arguments
    # of a skill that is not known here, the argument is probably called so
    place = find_text_place(schema, arguments) if schema is not None else None if arguments else "text"
    if place is not None:
        return {**(arguments or {}), place: named.text}
    if arguments is not None or not named.text.strip():
        return arguments or {}
    if schema is not None and not schema.get("required"):
        return {}
    raise invalid_parameters(
        f"{'the skill' if skill is None else skill.id} needs more than a text; send its arguments in a data "
        'part {"skill": …, "arguments": {…}}'
    )


def _with_files(named: Named, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    arguments = named.arguments or {}
    if (
        not isinstance(arguments, dict)
        or FILES in arguments
        or FILES not in (schema or {}).get("properties", {})
    ):
        raise content_type_not_supported(
            f"the skill takes no files: its input schema has no property {FILES!r}; send text and data parts"
        )
    return {**arguments, FILES: [dict(file) for file in named.files]}


def read_answer(message: IncomingMessage, schema: Mapping[str, Any]) -> Any:
    """The answer to a question: data, or text where the schema asks for one value; raises A2aError."""
    named = read_named(message, {})
    if named.files:
        raise content_type_not_supported("an answer is text or data; send no files")
    if named.arguments is not None:
        is_form = schema.get("type") == "object"
        data = named.arguments
        return (
            data["answer"] if not is_form and isinstance(data, dict) and data.keys() == {"answer"} else data
        )
    text = named.text or ""
    if schema.get("type") != "object":
        return _value_of(text, schema)
    properties = schema.get("properties", {})
    names = list(schema.get("required", ())) or list(properties)
    return {names[0]: _value_of(text, properties.get(names[0], {}))} if len(names) == 1 else {}


@dataclass(frozen=True, slots=True)
class ApprovalVerdict:
    """The answer to a call that waits for approval, ``yes`` or ``no``, with a reason."""

    word: str
    comment: str


def read_verdict(message: IncomingMessage) -> ApprovalVerdict | None:
    """A yes or no: data ``{"verdict": …, "comment": …}``, or a text such as "no, it is too late".

    None for any other message.
    """
    named = read_named(message, {})
    answer = named.arguments if isinstance(named.arguments, Mapping) else {}
    word, comment = str(answer.get("verdict", "")), str(answer.get("comment", ""))
    if named.text:
        word, _, comment = named.text.strip().replace(",", " ").partition(" ")
    word = word.lower().rstrip(".!")
    return ApprovalVerdict(word, comment.strip()) if word in ("yes", "no") else None


def render_result(value: Any, parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The parts of an artifact: a text is itself, any other value is data.

    A value that only repeats the parts, for endpoints without parts, is left out.
    """
    listed = tuple(parts)
    rendered = [render_part(part) for part in listed]
    if not is_made_of_parts(value, listed):
        rendered.append({"text": value} if isinstance(value, str) else {"data": value})
    return rendered


def render_answer_text(value: Any) -> list[dict[str, Any]]:
    """A text part with the text of an answer that has more to tell, as that of ``orchestrate``, if any."""
    text = value.get(_OUTPUT_KEY) if isinstance(value, Mapping) else None
    return [{"text": text}] if isinstance(text, str) and text.strip() else []


_OUTPUT_KEY = "output"


def render_part(part: Part) -> dict[str, Any]:
    """One content part as an A2A part."""
    rendered: dict[str, Any]
    if part.kind == "text":
        rendered = {"text": part.value if isinstance(part.value, str) else orjson.dumps(part.value).decode()}
    elif part.kind in ("image", "audio", "file") and isinstance(part.value, str):
        rendered = {"raw": part.value, "mediaType": part.mime}
    elif part.kind == "resource" and isinstance(part.value, Mapping):
        rendered = _render_resource(part.value, part.mime)
    else:
        rendered = {"data": part.value}
    if part.name:
        rendered["filename"] = part.name
    if part.annotations:
        rendered["metadata"] = {"annotations": dict(part.annotations)}
    return rendered


def with_whole_numbers(value: Any) -> Any:
    """The value with whole floats as integers, because protobuf has floats only."""
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict):
        return {key: with_whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_whole_numbers(inner) for inner in value]
    return value


_EXACT = 2**53


def _render_resource(value: Mapping[str, Any], mime: str) -> dict[str, Any]:
    name = str(value.get("uri", "")).rpartition("/")[2]
    if isinstance(value.get("blob"), str):
        return {"raw": value["blob"], "mediaType": mime, "filename": name}
    if isinstance(value.get("text"), str):
        return {"text": value["text"], "mediaType": mime, "filename": name}
    return {"url": str(value.get("uri", "")), "mediaType": mime}


def _value_of(text: str, schema: Any) -> Any:
    if is_string(schema):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _text_at(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise invalid_parameters(f"metadata.{key} is no text; give the id of a skill")
    return value
