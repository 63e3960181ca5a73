"""The back-end ``api``: calls a vendor's API, or any compatible server, through pydantic-ai.

The library takes seconds and 80 MB to load, so only the process of a model agent imports this module, at its
first call. The libraries' own retries are off (`complete_with_retries`).
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import openai
from pydantic_ai import exceptions as failures
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import Model as VendorModel
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from retinue.core.errors import BusyError, CallTimedOutError, ModelError, RetinueError
from retinue.llm.api_messages import MessageWriter, write_parameters
from retinue.llm.api_replies import ReplyMaker, list_images
from retinue.llm.completion import (
    MAX_ANSWER_BYTES,
    ModelPrompt,
    ModelReply,
    OnText,
    OnUsage,
    Redactor,
    Usage,
    ignore_usage,
)
from retinue.llm.spec import ModelSpec
from retinue.thinking.completion import CompletionRequest
from retinue.thinking.prompt_size import BYTES_PER_TOKEN

NO_KEY = "none"
"""The key for a server that needs none; the libraries want one."""

CONNECT_S = 10.0
RATE_LIMIT_WAIT_S = 5.0
"""When to try again after a rate limit, where the provider did not say."""


_FAILURES = (
    failures.AgentRunError,
    failures.UserError,
    anthropic.AnthropicError,
    openai.OpenAIError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    NotImplementedError,
    ValueError,
)
"""The errors of the libraries."""


class ApiModel:
    """A model of a vendor's API."""

    def __init__(self, spec: ModelSpec, key: str | None) -> None:
        self._spec = spec
        self._has_key = key is not None
        # redirects stay off: the libraries' headers with the key would follow them
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(spec.timeout_s, connect=CONNECT_S),
            event_hooks={"response": [_watch_end]} if spec.provider == "openai" else None,
        )
        self._model = _open_model(spec, key or NO_KEY, self._http)
        self._redact = Redactor([key] if key else [])

    async def complete(
        self, prompt: ModelPrompt, on_text: OnText, on_usage: OnUsage = ignore_usage
    ) -> ModelReply:
        try:
            if prompt.conversation is not None:
                return await self._converse(prompt.conversation, prompt.max_tokens, on_text, on_usage)
            parts: list[ModelRequestPart] = [
                SystemPromptPart(prompt.instructions),
                UserPromptPart(prompt.task),
            ]
            request = self._request([ModelRequest(parts=parts)], prompt.max_tokens)
            return await self._read_stream(request, on_text, on_usage, self._read)
        except ModelError as unusable:
            unusable.is_lost = True  # an answer came, and perhaps without its usage
            raise
        except _FAILURES as error:
            # without its cause: the text of the libraries' exceptions may hold the key
            raise self._explain(error) from None

    async def _converse(
        self, request: CompletionRequest, max_tokens: int, on_text: OnText, on_usage: OnUsage
    ) -> ModelReply:
        assert self._spec.provider is not None, "checked with the settings"
        maker = ReplyMaker(self._spec)
        writer = MessageWriter(self._spec.provider, maker)
        messages = writer.write(request)
        parameters = write_parameters(request, self._model.profile, self._spec.provider)
        settings: ModelSettings = {"cache": True} if self._spec.caches else {}
        if request.tools:
            settings["tool_choice"] = request.tool_choice

        def read(response: ModelResponse) -> ModelReply:
            self._check_end(response)
            reply = maker.read(response, wants_output=request.output_schema is not None)
            images = list_images(response)
            if reply.finish == "stop" and not (reply.text.strip() or images) and reply.output is None:
                raise ModelError.empty(self._spec.name)
            is_cut = reply.finish == "length"
            warnings = tuple(writer.warnings)
            return ModelReply(reply.text, _usage_of(response), reply.model, is_cut, reply, images, warnings)

        stream = self._request(messages, max_tokens, settings, parameters)
        return await self._read_stream(stream, on_text, on_usage, read)

    def _request(
        self,
        messages: Sequence[ModelMessage],
        max_tokens: int,
        settings: ModelSettings | None = None,
        parameters: ModelRequestParameters | None = None,
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        limits: ModelSettings = {"max_tokens": max_tokens, "timeout": self._spec.timeout_s}
        return model_request_stream(
            self._model,
            messages,
            model_settings={**(settings or {}), **limits},
            model_request_parameters=parameters,
            instrument=False,
        )

    async def _read_stream(
        self,
        request: AbstractAsyncContextManager[StreamedResponse],
        on_text: OnText,
        on_usage: OnUsage,
        read: Callable[[ModelResponse], ModelReply],
    ) -> ModelReply:
        async with request as stream:
            size = _Size(self._spec.name)
            try:
                async for event in stream:
                    if text := size.add(event):
                        await on_text(text)
                return read(stream.get())
            except BaseException:
                usage = _usage_of(stream.get())
                if not usage.output_tokens and size.of_calls:
                    # a provider may report the usage at the end only
                    output = math.ceil(size.of_calls / BYTES_PER_TOKEN)
                    usage = replace(usage, output_tokens=output, is_estimated=True)
                if usage.tokens:
                    on_usage(usage)
                raise

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _read(self, response: ModelResponse) -> ModelReply:
        name = self._spec.name
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        if response.finish_reason == "content_filter":
            raise ModelError.refused(name, self._redact(text))
        self._check_end(response)
        if not text.strip():
            raise ModelError.empty(name)
        return ModelReply(
            text,
            _usage_of(response),
            response.model_name or self._spec.asks_model,
            response.finish_reason == "length",
        )

    def _check_end(self, response: ModelResponse) -> None:
        """Raise ModelError for a response that its provider did not bring to an end."""
        name = self._spec.name
        is_ended = bool((response.provider_details or {}).get("finish_reason"))
        if response.finish_reason in (None, "error") and not is_ended:
            raise ModelError(name, "unavailable", "the provider's answer ended before it was complete")
        if response.finish_reason == "error":
            raise ModelError(name, "unavailable", "the provider ended the answer with an error")

    def _explain(self, error: Exception) -> RetinueError:
        """An exception of the libraries as an error of the table, without the key."""
        spec, name = self._spec, self._spec.name
        status = f" (status {error.status_code})" if isinstance(error, failures.ModelHTTPError) else ""
        text = self._redact(_message_of(error))
        match error:
            case failures.ModelAuthenticationError() if not self._has_key:
                return ModelError(
                    name,
                    "login",
                    f"the provider wants a key, and none is configured{status}",
                    remedy=f"put the key into a variable and name that: llm.{name}.api_key_env",
                )
            case failures.ModelAuthenticationError():
                # what the provider says may repeat a part of the key
                variable = " or ".join(spec.key_variables) or "its variable"
                remedy = f"set {variable} to a valid key, or name another variable: llm.{name}.api_key_env"
                return ModelError(name, "login", f"the provider refused the key{status}", remedy=remedy)
            case failures.ModelQuotaExceededError():
                return ModelError(
                    name, "quota", f"the account has no credit left{status}: {text}", remedy="add credit"
                )
            case failures.ModelRateLimitError():
                return BusyError(f"the rate limit of {name}", error.retry_after or RATE_LIMIT_WAIT_S)
            case failures.ModelTimeoutError() | failures.ModelRequestTimeout():
                return CallTimedOutError(
                    f"the model of {name}", spec.timeout_s, layer="model", setting=f"llm.{name}.timeout_s"
                )
            case (
                failures.ModelUnavailableError()
                | failures.ModelServerError()
                | failures.ModelConnectionError()
            ):
                problem = f"the provider is unavailable{status}: {text}"
                unavailable = ModelError(name, "unavailable", problem, retry_after_s=error.retry_after)
                unavailable.is_lost = _may_be_read(error)
                return unavailable
            case failures.ModelNotFoundError():
                problem = f"the provider has no model {spec.asks_model}{status}: {text}"
                return ModelError(name, "not_found", problem, remedy=f"set llm.{name}.model")
            case failures.ModelContextWindowExceededError():
                return ModelError(
                    name,
                    "too_long",
                    f"the prompt is longer than the model reads{status}: {text}",
                    remedy="send less, or call an agent with a larger context window: retinue agents",
                )
            case failures.ContentFilterError():
                return ModelError.refused(name, text)
            case failures.ModelRequestRejectedError() | failures.ModelHTTPError():
                return ModelError(name, "rejected", f"the provider rejected the request{status}: {text}")
            case failures.UserError() | NotImplementedError():
                return ModelError(name, "rejected", f"the model cannot take the request: {text}")
        return ModelError(name, "malformed", f"the provider's answer cannot be read: {text}")


class _Size:
    """Measures an answer while it comes, and refuses one that is too large."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._bytes = 0
        self.of_calls = 0

    def add(self, event: ModelResponseStreamEvent) -> str:
        """Count an event; returns the text of the answer in it. Raises ModelError."""
        content = event.part if isinstance(event, PartStartEvent) else None
        delta = event.delta if isinstance(event, PartDeltaEvent) else None
        text = ""
        if isinstance(content, TextPart):
            text = content.content
        elif isinstance(delta, TextPartDelta):
            text = delta.content_delta
        elif isinstance(content, ThinkingPart):
            self._bytes += len(content.content)
        elif isinstance(delta, ThinkingPartDelta):
            self._bytes += len(delta.content_delta or "")
        elif isinstance(content, ToolCallPart):
            self._count_arguments(content.args)
        elif isinstance(delta, ToolCallPartDelta):
            self._count_arguments(delta.args_delta)
        self._bytes += len(text)
        if self._bytes > MAX_ANSWER_BYTES:
            raise ModelError.too_large(self._agent, MAX_ANSWER_BYTES)
        return text

    def _count_arguments(self, arguments: str | Mapping[str, Any] | None) -> None:
        # an object comes whole, at once
        size = len(arguments) if isinstance(arguments, str) else len(str(arguments or ""))
        self._bytes += size
        self.of_calls += size


class _WatchedStream(httpx2.AsyncByteStream):
    """The body of a response; ``is_done`` once the line ``data: [DONE]`` has come."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body
        self._tail = b""
        self.is_done = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            # the line may be divided between two pieces
            self._tail = self._tail[-_DONE_BYTES:] + piece
            self.is_done = self.is_done or _DONE.search(self._tail) is not None
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


_DONE = re.compile(rb"[\r\n]data: ?\[DONE\]")
_DONE_BYTES = 13


async def _watch_end(response: httpx2.Response) -> None:
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _WatchedStream(response.stream)


class _OpenAIStream(OpenAIStreamedResponse):
    """An answer of a compatible server, some of which send no finish reason but ``[DONE]``."""

    def _missing_finish_reason(self) -> FinishReason:
        body = self._response.source.response.stream
        if not isinstance(body, _WatchedStream) or body.is_done:
            return "stop"
        return "error"


class _OpenAIModel(OpenAIChatModel):
    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _OpenAIStream


def _usage_of(response: ModelResponse) -> Usage:
    usage = response.usage
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )


def _open_model(spec: ModelSpec, key: str, http: httpx2.AsyncClient) -> VendorModel[Any]:
    model, url = spec.asks_model, spec.base_url
    if spec.provider == "anthropic":
        client = anthropic.AsyncAnthropic(api_key=key, base_url=url, max_retries=0, http_client=http)
        return AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client))
    if spec.provider == "google":
        return GoogleModel(model, provider=GoogleProvider(api_key=key, base_url=url, http_client=http))
    own = openai.AsyncOpenAI(api_key=key, base_url=url, max_retries=0, http_client=http)
    # what OpenAI calls max_completion_tokens now, other servers know by its first name
    profile = None if url is None else OpenAIModelProfile(openai_chat_supports_max_completion_tokens=False)
    return _OpenAIModel(model, provider=OpenAIProvider(openai_client=own), profile=profile)


def _may_be_read(error: Exception) -> bool:
    """Whether the connection failed after the request was sent, so that the provider may have acted on it."""
    if isinstance(error, failures.ModelConnectionError):
        return error.phase not in ("pool", "connect")
    return isinstance(error, failures.ModelAPIError) and error.in_stream


def _message_of(error: Exception) -> str:
    """The message of the provider, as one line."""
    body = error.body if isinstance(error, failures.ModelHTTPError) else None
    for key in ("error", "message"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    text = body if isinstance(body, str) else getattr(error, "message", "") or str(error)
    return text.strip().partition("\n")[0] or type(error).__name__
