"""Writes a conversation of the skill ``complete`` as messages and parameters of pydantic-ai.

The messages of a conversation that only grows stay the same, so that the provider finds them in its cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import orjson
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputMode, OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from retinue.core.call import Part
from retinue.core.errors import InvalidParametersError, Problem
from retinue.core.parts import count_bytes, decode, is_text_type
from retinue.llm.api_replies import OUTPUT_TOOL, ReplyMaker, read_json, rewrite_call
from retinue.llm.output_schemas import close_schema, is_expressible
from retinue.llm.spec import Provider
from retinue.thinking.completion import (
    AssistantMessage,
    CompletionReply,
    CompletionRequest,
    ToolMessage,
    ToolResult,
)

READABLE: Mapping[Provider, frozenset[str]] = {
    "anthropic": frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}),
    "openai": frozenset(
        {
            *("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"),
            *("audio/wav", "audio/mpeg"),
        }
    ),
    "google": frozenset(
        {
            *("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf"),
            *("audio/wav", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"),
        }
    ),
}
"""The media types that the API of each provider reads; a model may read fewer."""

_SAME_TYPE = {"audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav", "image/jpg": "image/jpeg"}
_NOTHING = "(empty)"
"""Vendors refuse a message without text."""

_INVALID = "INVALID_JSON"

_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""The ids of calls that every vendor takes."""

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(slots=True)
class MessageWriter:
    """Writes one conversation for one provider; ``warnings`` say what it could not write."""

    provider: Provider
    maker: ReplyMaker
    warnings: list[str] = field(default_factory=list)

    def write(self, request: CompletionRequest) -> list[ModelMessage]:
        """The messages of the request. Raises InvalidParametersError for data that is no base64."""
        messages: list[ModelMessage] = []
        parts: list[ModelRequestPart] = [SystemPromptPart(request.system)] if request.system else []
        for number, message in enumerate(request.messages):
            at = f"messages[{number}]"
            if isinstance(message, AssistantMessage):
                messages.append(ModelRequest(parts=parts))
                response = self._write_reply(message.reply, at)
                messages.append(response)
                parts = _answer_outputs(response, message.reply)
            elif isinstance(message, ToolMessage):
                parts += [self._write_result(result, at) for result in message.results]
            else:
                parts.append(UserPromptPart(self._write_content(message.content, at)))
        return [*messages, ModelRequest(parts=parts)]

    def _write_reply(self, reply: CompletionReply, at: str) -> ModelResponse:
        response = self.maker.read_history(reply)
        if response is not None:
            return replace(response, parts=[_with_plain_call(part) for part in response.parts])
        if self.maker.is_own(reply):
            # the history of another release of the library, or a damaged one
            self.warnings.append(f"the history of {at} cannot be read, so its thinking was left out")
        parts: list[ModelResponsePart] = []
        text = reply.text
        if not text.strip() and reply.output is not None:
            text = orjson.dumps(reply.output).decode()
        if text.strip():
            parts.append(TextPart(text))
        for call in reply.calls:
            arguments = _plain_arguments(call.arguments)
            parts.append(ToolCallPart(_plain_name(call.name), arguments, _plain_id(call.id)))
        return ModelResponse(parts=parts or [TextPart(_NOTHING)])

    def _write_result(self, result: ToolResult, at: str) -> ToolReturnPart:
        content = self._write_content(result.content, at)
        # an id that a provider gave is its own and stays; that of another provider was made plain
        call_id = result.id if self.maker.keeps_id(result.id) else _plain_id(result.id)
        return ToolReturnPart(
            _plain_name(result.name), content, call_id, outcome="failed" if result.is_error else "success"
        )

    def _write_content(self, content: Sequence[Part], at: str) -> Any:
        """One text, or a list of texts and media."""
        written: list[str | BinaryContent] = [
            item for part in content if (item := self._write_part(part, at)) != ""
        ]
        if all(isinstance(item, str) for item in written):
            return "\n\n".join(item for item in written if isinstance(item, str)) or _NOTHING
        return written

    def _write_part(self, part: Part, at: str) -> str | BinaryContent:
        if part.kind == "text":
            return str(part.value) if part.value.strip() else ""
        mime = part.mime.partition(";")[0].strip().lower()
        mime = _SAME_TYPE.get(mime, mime)
        data = decode(part.value)
        if data is None:
            problem = f"{at}: expected base64 as the data of its {part.kind}"
            raise InvalidParametersError([Problem(at, problem)])
        if mime in READABLE[self.provider]:
            return BinaryContent(data, media_type=mime)
        if is_text_type(mime):
            return data.decode("utf-8", "replace")
        self.warnings.append(f"the model cannot read {mime}, so it was left out of {at}")
        return f"[{part.kind} of the type {mime}, {count_bytes(part.value):,} bytes: left out, not readable]"


def write_parameters(
    request: CompletionRequest, profile: Mapping[str, Any], provider: Provider
) -> ModelRequestParameters:
    """The tools and the form of the output.

    The output is native where the model has it and the schema can be expressed so, else a call of a tool, and
    for a model without tools a text that its instructions describe.
    """
    tools = [_write_tool(tool.name, tool.description, tool.input_schema) for tool in request.tools]
    if request.output_schema is None:
        return ModelRequestParameters(function_tools=tools)
    schema = close_schema(request.output_schema)
    is_native = profile.get("supports_json_schema_output", False) and is_expressible(schema)
    if provider == "google" and tools and not profile.get("google_supports_tool_combination", False):
        is_native = False
    if is_native or not profile.get("supports_tools", True):
        output = OutputObjectDefinition(json_schema=schema, name=OUTPUT_TOOL)
        mode: OutputMode = "native" if is_native else "prompted"
        return ModelRequestParameters(function_tools=tools, output_mode=mode, output_object=output)
    if any(tool.name == OUTPUT_TOOL for tool in request.tools):
        raise InvalidParametersError([Problem("tools", f"tools: {OUTPUT_TOOL} is the name of the output")])
    description = "Gives the final answer. Call it once, when the work is done."
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="tool",
        output_tools=[_write_tool(OUTPUT_TOOL, description, request.output_schema)],
        allow_text_output=False,
    )


def _write_tool(name: str, description: str, schema: Mapping[str, Any]) -> ToolDefinition:
    return ToolDefinition(name=name, description=description, parameters_json_schema=close_schema(schema))


def _answer_outputs(response: ModelResponse, reply: CompletionReply) -> list[ModelRequestPart]:
    """The results of calls of the output tool, which the caller does not see as calls."""
    ids = {call.id for call in reply.calls}
    text = "Not read, because other tools were called: give the answer again." if ids else "Received."
    return [
        ToolReturnPart(OUTPUT_TOOL, text, part.tool_call_id)
        for part in response.parts
        if isinstance(part, ToolCallPart) and part.tool_name == OUTPUT_TOOL and part.tool_call_id not in ids
    ]


def _with_plain_call(part: ModelResponsePart) -> ModelResponsePart:
    """A call with a name and arguments that every vendor takes; other parts as they are."""
    if not isinstance(part, ToolCallPart):
        return part
    return rewrite_call(part, name=_plain_name(part.tool_name), arguments=_plain_arguments(part.args))


def _plain_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments as an object; text that is no object becomes the member that the library uses for it."""
    value = read_json(arguments) if isinstance(arguments, str) else arguments
    return dict(value) if isinstance(value, Mapping) else {_INVALID: arguments or ""}


def _plain_name(name: str) -> str:
    """A name of a tool that every vendor takes; a model may have made up any other."""
    if _TOOL_NAME.fullmatch(name):
        return name
    return f"t_{re.sub(r'[^A-Za-z0-9_-]', '_', name)}"[:64]


def _plain_id(call_id: str) -> str:
    return call_id if _CALL_ID.fullmatch(call_id) else f"call_{sha256(call_id.encode()).hexdigest()[:24]}"
