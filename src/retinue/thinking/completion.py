"""The JSON format of the skill ``complete``: a conversation with tools, and the model's reply.

A model agent returns a reply as an object. The caller puts that object into the next request unchanged,
because its ``history`` holds what the provider wants back, such as the signatures of thinking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, TypeVar, cast, get_args

import orjson

from retinue.core.call import Part, PartKind
from retinue.core.errors import InvalidParametersError, Problem
from retinue.core.json_values import name_shape

COMPLETE = "complete"
"""The id of the skill."""

ToolChoice = Literal["auto", "none"]
Finish = Literal["stop", "calls", "length", "refused"]
"""Why a reply ended: its end, tool calls, the limit of tokens, or a refusal."""

CONTENT_KINDS: tuple[PartKind, ...] = ("text", "image", "audio", "file")
"""The kinds of parts that a message may hold."""

MAX_TOOLS = 128
"""More tools are refused by vendors."""

TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""The names of tools that every vendor accepts."""

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call; ``input_schema`` is a JSON Schema of an object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": dict(self.input_schema),
        }

    @classmethod
    def from_json(cls, value: Any, at: str) -> Tool:
        """The tool in this form; ``at`` is its place. Raises InvalidParametersError."""
        fields = _object(value, at)
        name = _text(fields, "name", at)
        if not TOOL_NAME.fullmatch(name):
            raise _problem(
                f"{at}.name", "a name of 1 to 64 letters, digits, _ and -, which begins with no digit or -"
            )
        schema = _object(fields.get("input_schema"), f"{at}.input_schema")
        return cls(name, _text(fields, "description", at, default=""), schema)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wants; ``id`` is unique within its reply.

    ``arguments`` is an object, or the text as the model wrote it where that is no JSON object.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | str

    def to_json(self) -> dict[str, Any]:
        arguments = self.arguments if isinstance(self.arguments, str) else dict(self.arguments)
        return {"id": self.id, "name": self.name, "arguments": arguments}

    @classmethod
    def from_json(cls, value: Any, at: str) -> ToolCall:
        """The call in this form; ``at`` is its place. Raises InvalidParametersError."""
        fields = _object(value, at)
        arguments = fields.get("arguments")
        if not isinstance(arguments, Mapping | str):
            raise _problem(f"{at}.arguments", "an object or a string", arguments)
        return cls(_text(fields, "id", at), _text(fields, "name", at), arguments)


@dataclass(frozen=True, slots=True)
class CompletionReply:
    """A reply of a model.

    ``output`` is the value for ``output_schema``; None without one. Calls may run only where ``finish`` is
    "calls": a reply that was cut or refused may hold some too. ``history`` is for the same provider and model
    only.
    """

    text: str
    calls: tuple[ToolCall, ...]
    finish: Finish
    model: str
    provider: str
    output: Any = None
    history: Any = None

    def to_json(self) -> dict[str, Any]:
        """The reply as the skill returns it; ``output`` and ``history`` only where they have a value."""
        rendered: dict[str, Any] = {
            "text": self.text,
            "calls": [call.to_json() for call in self.calls],
            "finish": self.finish,
            "model": self.model,
            "provider": self.provider,
        }
        if self.output is not None:
            rendered["output"] = self.output
        if self.history is not None:
            rendered["history"] = self.history
        return rendered

    @classmethod
    def from_json(cls, value: Any, at: str = "reply") -> CompletionReply:
        """The reply in this form; ``at`` is its place. Raises InvalidParametersError."""
        fields = _object(value, at)
        calls = _items(fields, "calls", at, ToolCall.from_json)
        if len({call.id for call in calls}) < len(calls):
            raise _problem(f"{at}.calls", "calls with different ids")
        finish = _word(fields, "finish", at, get_args(Finish))
        return cls(
            _text(fields, "text", at, default=""),
            calls,
            cast(Finish, finish),
            _text(fields, "model", at, default=""),
            _text(fields, "provider", at, default=""),
            fields.get("output"),
            fields.get("history"),
        )


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call of the reply before; an error is a result too."""

    id: str
    name: str
    content: tuple[Part, ...]
    is_error: bool = False

    def to_json(self) -> dict[str, Any]:
        content = [_write_part(part) for part in self.content]
        return {"id": self.id, "name": self.name, "content": content, "is_error": self.is_error}

    @classmethod
    def from_json(cls, value: Any, at: str) -> ToolResult:
        """The result in this form; ``at`` is its place. Raises InvalidParametersError."""
        fields = _object(value, at)
        is_error = fields.get("is_error", False)
        if not isinstance(is_error, bool):
            raise _problem(f"{at}.is_error", "a boolean", is_error)
        content = _items(fields, "content", at, _read_part)
        return cls(_text(fields, "id", at), _text(fields, "name", at), content, is_error)


@dataclass(frozen=True, slots=True)
class UserMessage:
    """The request to the model: text, images and other content."""

    content: tuple[Part, ...]

    def to_json(self) -> dict[str, Any]:
        return {"role": "user", "content": [_write_part(part) for part in self.content]}


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A reply that an earlier request returned."""

    reply: CompletionReply

    def to_json(self) -> dict[str, Any]:
        return {"role": "assistant", "reply": self.reply.to_json()}


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The results of the calls of the reply before, one for each."""

    results: tuple[ToolResult, ...]

    def to_json(self) -> dict[str, Any]:
        return {"role": "tool", "results": [result.to_json() for result in self.results]}


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request to a model.

    ``tool_choice`` "none" keeps the tools in the request and forbids calls. ``max_tokens`` limits the answer;
    None is the limit of the model agent.
    """

    system: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    output_schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The arguments of the skill."""
        return {
            "system": self.system,
            "messages": [message.to_json() for message in self.messages],
            "tools": [tool.to_json() for tool in self.tools],
            "tool_choice": self.tool_choice,
            "output_schema": None if self.output_schema is None else dict(self.output_schema),
            "max_tokens": self.max_tokens,
        }

    @classmethod
    def from_json(cls, value: Any) -> CompletionRequest:
        """The request in this form.

        Raises InvalidParametersError for another form, tools with equal names, and a conversation that no
        provider takes: one with a call without its result, or one that ends with a reply.
        """
        fields = _object(value, "")
        messages = _items(fields, "messages", "", _read_message)
        tools = _items(fields, "tools", "", Tool.from_json) if fields.get("tools") is not None else ()
        if len(tools) > MAX_TOOLS:
            raise _problem("tools", f"at most {MAX_TOOLS} tools")
        if len({tool.name for tool in tools}) < len(tools):
            raise _problem("tools", "tools with different names")
        choice = _word({"tool_choice": "auto", **fields}, "tool_choice", "", get_args(ToolChoice))
        schema, max_tokens = fields.get("output_schema"), fields.get("max_tokens")
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise _problem("max_tokens", "a whole number from 1", max_tokens)
        request = cls(
            _text(fields, "system", "", default=""),
            messages,
            tools,
            cast(ToolChoice, choice),
            None if schema is None else _object(schema, "output_schema"),
            max_tokens,
        )
        _check_order(messages)
        return request

    def digests(self) -> dict[str, Any]:
        """By which a recorded reply is found: of each message, and of all else but ``max_tokens``."""
        document = self.to_json()
        return {
            "system": _digest(document["system"]),
            "tools": _digest([document["tools"], document["tool_choice"]]),
            "output_schema": _digest(document["output_schema"]),
            "messages": [_digest(message) for message in document["messages"]],
        }


def _check_order(messages: Sequence[Message]) -> None:
    if not messages or not isinstance(messages[0], UserMessage):
        raise _problem("messages", "a list that begins with a message of the role user")
    open_calls: dict[str, str] = {}
    for number, message in enumerate(messages):
        at = f"messages[{number}]"
        if isinstance(message, ToolMessage):
            ids = [result.id for result in message.results]
            if not open_calls or sorted(ids) != sorted(open_calls):
                raise _problem(f"{at}.results", "one result for each call of the reply before")
            for result in message.results:
                if result.name != open_calls[result.id]:
                    raise _problem(f"{at}.results", f"the name {open_calls[result.id]} for {result.id}")
            open_calls = {}
        elif open_calls:
            raise _problem(at, "the results of the calls of the reply before (role tool)")
        elif isinstance(message, AssistantMessage):
            open_calls = {call.id: call.name for call in message.reply.calls}
    if isinstance(messages[-1], AssistantMessage):
        raise _problem(
            f"messages[{len(messages) - 1}]", "a message of the role user or tool after the last reply"
        )


def _read_message(value: Any, at: str) -> Message:
    fields = _object(value, at)
    role = _word(fields, "role", at, ("user", "assistant", "tool"))
    if role == "user":
        return UserMessage(_items(fields, "content", at, _read_part))
    if role == "assistant":
        return AssistantMessage(CompletionReply.from_json(fields.get("reply"), f"{at}.reply"))
    return ToolMessage(_items(fields, "results", at, ToolResult.from_json))


def _write_part(part: Part) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.value}
    return {"type": part.kind, "data": part.value, "mime_type": part.mime}


def _read_part(value: Any, at: str) -> Part:
    fields = _object(value, at)
    kind = _word(fields, "type", at, CONTENT_KINDS)
    if kind == "text":
        return Part.text(_text(fields, "text", at))
    return Part(cast(PartKind, kind), _text(fields, "data", at), _text(fields, "mime_type", at))


def _problem(at: str, expected: str, value: Any = ...) -> InvalidParametersError:
    """The error for a value at this place, which should be ``expected``."""
    shape = "" if value is ... else f", not {name_shape(value)}"
    return InvalidParametersError([Problem(at, f"{at or 'the arguments'}: expected {expected}{shape}")])


def _object(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _problem(at, "an object", value)
    return value


def _text(fields: Mapping[str, Any], key: str, at: str, *, default: str | None = None) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str):
        raise _problem(_place(at, key), "a string", value)
    return value


def _word(fields: Mapping[str, Any], key: str, at: str, words: Sequence[str]) -> str:
    value = fields.get(key)
    if value not in words:
        raise _problem(_place(at, key), f"one of {', '.join(words)}")
    return str(value)


def _items(
    fields: Mapping[str, Any], key: str, at: str, read: Callable[[Any, str], _Read]
) -> tuple[_Read, ...]:
    value, place = fields.get(key), _place(at, key)
    if not isinstance(value, list | tuple):
        raise _problem(place, "a list", value)
    return tuple(read(item, f"{place}[{number}]") for number, item in enumerate(value))


def _place(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _digest(value: Any) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
