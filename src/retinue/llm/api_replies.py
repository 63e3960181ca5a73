"""Reads a response of pydantic-ai as a reply of the skill ``complete``, and the history of one back.

The history holds the response as the library writes it, with thinking parts and signatures. It goes back only
to the server, provider and model that made it, because others refuse the signatures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    FilePart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)

from retinue.core.call import Part
from retinue.core.errors import OutputInvalidError
from retinue.core.json_values import encode_json
from retinue.core.text import hide_url_secrets
from retinue.llm.spec import ModelSpec
from retinue.llm.structured import find_object
from retinue.thinking.completion import CompletionReply, Finish, ToolCall

OUTPUT_TOOL = "retinue_final_answer"
"""The tool by which a model gives its output where it has no native output."""

_HISTORY_VERSION = 1
_KEPT = (
    *("parts", "kind", "model_name", "provider_name", "canonical_system"),
    *("provider_details", "finish_reason"),
)
"""What a history keeps of a response: what the library sends back or decides by."""

_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


@dataclass(slots=True)
class ReplyMaker:
    """Makes the replies of one model, and knows its own again."""

    spec: ModelSpec
    _ids: set[str] = field(default_factory=set)

    @property
    def _origin(self) -> dict[str, str]:
        server = hide_url_secrets(self.spec.base_url) if self.spec.base_url else ""
        return {"provider": self.spec.provider or "", "model": self.spec.asks_model, "server": server}

    def read(self, response: ModelResponse, *, wants_output: bool) -> CompletionReply:
        """The reply that a complete response is."""
        response = replace(response, parts=_number_calls(response.parts))
        parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
        outputs = [part for part in parts if wants_output and part.tool_name == OUTPUT_TOOL]
        calls = tuple(
            ToolCall(part.tool_call_id, part.tool_name, _read_arguments(part))
            for part in parts
            if part not in outputs
        )
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        finish = _finish_of(response, calls)
        output = None
        if finish == "stop" and outputs:
            arguments = _read_arguments(outputs[-1])
            output = find_object(arguments) if isinstance(arguments, str) else arguments
        elif finish == "stop" and wants_output:
            output = _read_output(text)
        return CompletionReply(
            text,
            calls,
            finish,
            response.model_name or self.spec.asks_model,
            self.spec.provider or "",
            output,
            self._write_history(response),
        )

    def _write_history(self, response: ModelResponse) -> dict[str, Any]:
        dumped = _RESPONSE.dump_python(response, mode="json", exclude_none=True)
        kept = {key: dumped[key] for key in _KEPT if key in dumped}
        return {"version": _HISTORY_VERSION, "from": self._origin, "response": kept}

    def is_own(self, reply: CompletionReply) -> bool:
        """Whether this model has made the reply."""
        return isinstance(reply.history, Mapping) and reply.history.get("from") == self._origin

    def read_history(self, reply: CompletionReply) -> ModelResponse | None:
        """The response that the history of an own reply holds; None for one of another model.

        None, too, for a history that cannot be read or has other calls than the reply.
        """
        if not self.is_own(reply) or reply.history.get("version") != _HISTORY_VERSION:
            return None
        try:
            response = _RESPONSE.validate_python(reply.history.get("response"))
        except ValidationError:
            return None
        kinds = (TextPart, ThinkingPart, ToolCallPart, FilePart)
        parts = [part for part in response.parts if isinstance(part, kinds)]
        ids = [call.id for call in reply.calls]
        calls = [part for part in parts if isinstance(part, ToolCallPart)]
        own = [
            part.tool_call_id for part in calls if part.tool_call_id in ids or part.tool_name != OUTPUT_TOOL
        ]
        if not parts or own != ids:
            return None
        self._ids.update(ids)
        return replace(response, parts=parts)

    def keeps_id(self, call_id: str) -> bool:
        """Whether a call of this id was read from a history, so that its result has to name the same id."""
        return call_id in self._ids


def list_images(response: ModelResponse) -> tuple[Part, ...]:
    """The images and other files that the model made."""
    files = [part.content for part in response.parts if isinstance(part, FilePart)]
    return tuple(
        Part("image" if file.is_image else "audio" if file.is_audio else "file", file.base64, file.media_type)
        for file in files
    )


def _finish_of(response: ModelResponse, calls: tuple[ToolCall, ...]) -> Finish:
    if response.finish_reason == "content_filter":
        return "refused"
    if response.finish_reason == "length":
        return "length"
    return "calls" if calls else "stop"


def _number_calls(parts: Sequence[ModelResponsePart]) -> list[ModelResponsePart]:
    """The parts with a different id for each call, because providers leave ids out or repeat them."""
    seen: set[str] = set()
    numbered: list[ModelResponsePart] = []
    for part in parts:
        if isinstance(part, ToolCallPart):
            call_id, number = part.tool_call_id or "call", 1
            while call_id in seen:
                number += 1
                call_id = f"{part.tool_call_id or 'call'}_{number}"
            seen.add(call_id)
            part = rewrite_call(part, call_id=call_id, arguments=_read_arguments(part))
        numbered.append(part)
    return numbered


def rewrite_call(
    part: ToolCallPart, *, call_id: str = "", name: str = "", arguments: Mapping[str, Any] | str | None = None
) -> ToolCallPart:
    """The call with another id, name or arguments, and with what its provider wants back."""
    own = part.args if arguments is None else arguments
    return ToolCallPart(
        name or part.tool_name,
        own if isinstance(own, str) else {**(own or {})},
        call_id or part.tool_call_id,
        id=part.id,
        provider_name=part.provider_name,
        provider_details=part.provider_details,
    )


def _read_arguments(part: ToolCallPart) -> Mapping[str, Any] | str:
    """The arguments as an object, or the text of the model if it is no object."""
    text = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
    if not text.strip():
        return {}
    value = read_json(text)
    return value if isinstance(value, dict) else text


def _read_output(text: str) -> Any:
    """The value of a JSON text, or of the object inside another text; None without one."""
    value = read_json(text)
    return find_object(text) if value is None else value


def read_json(text: str) -> Any:
    """The value of a JSON text; None for other text, and for numbers that JSON cannot hold."""
    try:
        value = json.loads(text, strict=False)
        encode_json(value, "")
    except (ValueError, RecursionError, OutputInvalidError):
        return None
    return value
