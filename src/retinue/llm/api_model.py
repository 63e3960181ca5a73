"""The back-end ``api``: calls a vendor's API, or any compatible server, through pydantic-ai.

The library takes seconds and 80 MB to load, so only the process of a model agent imports this module, at its
first call. The libraries' own retries are off (`complete_with_retries`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import openai
from pydantic_ai import exceptions as failures
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    FinishReason,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.models import Model as VendorModel
from pydantic_ai.models import StreamedResponse
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from retinue.core.errors import BusyError, CallTimedOutError, ModelError, RetinueError
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
        parts: list[ModelRequestPart] = [SystemPromptPart(prompt.instructions), UserPromptPart(prompt.task)]
        try:
            async with model_request_stream(
                self._model,
                [ModelRequest(parts=parts)],
                model_settings={"max_tokens": prompt.max_tokens, "timeout": self._spec.timeout_s},
                instrument=False,
            ) as stream:
                try:
                    await self._read_stream(stream, on_text)
                    return self._read(stream.get())
                except BaseException:
                    usage = _usage_of(stream.get())
                    if usage.tokens:
                        on_usage(usage)
                    raise
        except _FAILURES as error:
            # without its cause: the text of the libraries' exceptions may hold the key
            raise self._explain(error) from None

    async def _read_stream(self, stream: StreamedResponse, on_text: OnText) -> None:
        size = 0
        async for event in stream:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                piece = event.part.content
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                piece = event.delta.content_delta
            else:
                continue
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise ModelError.too_large(self._spec.name, MAX_ANSWER_BYTES)
            await on_text(piece)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _read(self, response: ModelResponse) -> ModelReply:
        name = self._spec.name
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        if response.finish_reason == "content_filter":
            raise ModelError.refused(name, self._redact(text))
        is_ended = bool((response.provider_details or {}).get("finish_reason"))
        if response.finish_reason in (None, "error") and not is_ended:
            raise ModelError(name, "unavailable", "the provider's answer ended before it was complete")
        if response.finish_reason == "error":
            raise ModelError(name, "unavailable", "the provider ended the answer with an error")
        if not text.strip():
            raise ModelError.empty(name)
        return ModelReply(
            text,
            _usage_of(response),
            response.model_name or self._spec.asks_model,
            response.finish_reason == "length",
        )

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
                return ModelError(name, "unavailable", problem, retry_after_s=error.retry_after)
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
        return ModelError(name, "malformed", f"the provider's answer cannot be read: {text}")


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
    return Usage(response.usage.input_tokens, response.usage.output_tokens)


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


def _message_of(error: Exception) -> str:
    """The message of the provider, as one line."""
    body = error.body if isinstance(error, failures.ModelHTTPError) else None
    for key in ("error", "message"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    text = body if isinstance(body, str) else getattr(error, "message", "") or str(error)
    return text.strip().partition("\n")[0] or type(error).__name__
