"""The back-end ``api`` against servers that speak the vendors' wire formats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from retinue.core.errors import BusyError, CallTimedOutError, ModelError, RetinueError
from retinue.llm.api_model import ApiModel
from retinue.llm.completion import (
    MAX_ANSWER_BYTES,
    ModelPrompt,
    ModelReply,
    Usage,
    complete_with_retries,
    ignore_text,
)
from retinue.llm.spec import ModelSpec
from tests.llm.vendors import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    VENDORS,
    Cut,
    EndEarly,
    Fail,
    Garbage,
    Hang,
    Move,
    OnlyDone,
    Refuse,
    Say,
    Turn,
    Vendor,
    VendorServer,
    vendor,
)

KEY = "sk-very-secret-0123456789abcdef"
PROMPT = ModelPrompt("Be brief.", "What is 6 times 7?", 100)


@asynccontextmanager
async def model_of(server: VendorServer, *, key: str | None = KEY, **options: Any) -> AsyncIterator[ApiModel]:
    spec = ModelSpec(
        "tester",
        server.vendor,
        model="model-asked-for",
        base_url=server.base_url,
        api_key_env=key and "K",
        **options,
    )
    async with aclosing(ApiModel(spec, key)) as model:
        yield model


async def ask(kind: Vendor, *turns: Turn, **options: Any) -> ModelReply:
    async with vendor(kind, *turns) as server, model_of(server, **options) as model:
        return await model.complete(PROMPT, ignore_text)


async def fail(kind: Vendor, *turns: Turn, **options: Any) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        await ask(kind, *turns, **options)
    error = caught.value
    assert error.remedy
    seen: BaseException | None = error
    while seen is not None:  # a traceback shows the causes, too
        assert KEY not in f"{seen!r} {seen}"
        seen = seen.__cause__
    return error


@pytest.mark.parametrize("kind", VENDORS)
async def test_streams_an_answer_with_its_usage(kind: Vendor) -> None:
    pieces: list[str] = []

    async def take(piece: str) -> None:
        pieces.append(piece)

    async with vendor(kind, Say("It is forty-two.")) as server, model_of(server) as model:
        found = await model.complete(PROMPT, take)
    assert found.text == "It is forty-two."
    assert "".join(pieces) == found.text
    assert len([one for one in pieces if one]) > 1
    assert (found.usage.input_tokens, found.usage.output_tokens) == (INPUT_TOKENS, OUTPUT_TOKENS)
    assert not found.is_cut
    assert server.keys == [KEY]
    assert "model-asked-for" in server.prompts[0] + server.paths[0]
    assert "Be brief." in server.prompts[0]
    request = server.requests[0]
    assert 100 in (request.get("max_tokens"), request.get("generationConfig", {}).get("maxOutputTokens"))
    assert "6 times 7" in server.prompts[0]


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_answer_that_reached_the_limit_is_marked_as_cut(kind: Vendor) -> None:
    assert (await ask(kind, Say("one, two", "length"))).is_cut


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("turn", [Refuse(), Say("I will", "filter"), Say("", "filter")], ids=str)
async def test_a_refusal_and_a_content_filter_are_refusals_with_a_remedy(kind: Vendor, turn: Turn) -> None:
    error = await fail(kind, turn)
    assert isinstance(error, ModelError)
    assert error.reason == "refused"
    assert not error.kind.retryable
    assert "tester" in error.message


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("turn", [Say(""), Say("I will", "filter")], ids=["empty", "filter"])
async def test_the_usage_of_a_failed_answer_is_reported(kind: Vendor, turn: Turn) -> None:
    reported: list[Usage] = []
    async with vendor(kind, turn) as server, model_of(server) as model:
        with pytest.raises(ModelError):
            await model.complete(PROMPT, ignore_text, reported.append)
    assert [usage.input_tokens for usage in reported] == [INPUT_TOKENS]


@pytest.mark.parametrize("kind", VENDORS)
async def test_no_usage_is_reported_of_a_request_that_failed(kind: Vendor) -> None:
    reported: list[Usage] = []
    async with vendor(kind, Fail(500)) as server, model_of(server) as model:
        with pytest.raises(ModelError):
            await model.complete(PROMPT, ignore_text, reported.append)
    assert reported == []


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("text", ["", " \n "])
async def test_an_empty_answer_is_an_error(kind: Vendor, text: str) -> None:
    error = await fail(kind, Say(text))
    assert isinstance(error, ModelError)
    assert error.reason == "empty"


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    error = await fail("openai", Say("x" * (MAX_ANSWER_BYTES + 3)))
    assert isinstance(error, ModelError)
    assert error.reason == "rejected"
    assert error.message.endswith("its answer is larger than 16,777,216 bytes")


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_refused_key_names_the_variable_and_never_the_key(kind: Vendor) -> None:
    said = f"Incorrect API key provided: {KEY[:9]}***{KEY[-4:]}, {KEY}"
    error = await fail(kind, Fail(401, "authentication_error", said))
    assert isinstance(error, ModelError)
    assert error.reason == "login"
    assert "K" in error.remedy
    assert KEY[:9] not in error.message


async def test_a_model_without_a_key_is_told_that_the_provider_wants_one() -> None:
    error = await fail("openai", Fail(401, "authentication_error", "no key"), key=None)
    assert isinstance(error, ModelError)
    assert error.reason == "login"
    assert "wants a key, and none is configured" in error.message
    assert error.remedy == "put the key into a variable and name that: llm.tester.api_key_env"


@pytest.mark.parametrize("kind", VENDORS)
async def test_the_key_is_removed_from_what_the_provider_says(kind: Vendor) -> None:
    error = await fail(kind, Fail(400, "invalid_request_error", f"bad field, your key is {KEY}"))
    assert isinstance(error, ModelError)
    assert error.reason == "rejected"
    assert "bad field, your key is [key]" in error.message


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_unknown_model_names_the_setting(kind: Vendor) -> None:
    error = await fail(kind, Fail(404, "not_found_error", "model not found"))
    assert isinstance(error, ModelError)
    assert error.reason == "not_found"
    assert "llm.tester.model" in error.remedy


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_rate_limit_is_busy_for_as_long_as_the_provider_says(kind: Vendor) -> None:
    error = await fail(kind, Fail(429, "rate_limit_error", "slow down", retry_after="17"))
    assert isinstance(error, BusyError)
    assert error.retry_after_s == 17


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("status", [500, 502, 503, 529])
async def test_a_server_error_is_unavailable(kind: Vendor, status: int) -> None:
    error = await fail(kind, Fail(status))
    assert isinstance(error, ModelError)
    assert error.reason == "unavailable"
    assert error.kind.retryable
    assert not error.is_lost


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_answer_without_its_end_is_unavailable_and_repeated(kind: Vendor) -> None:
    error = await fail(kind, EndEarly())
    assert isinstance(error, ModelError)
    assert error.reason == "unavailable"
    assert error.kind.retryable
    assert error.is_lost
    clock = Clock()
    async with vendor(kind, EndEarly(), Say("the whole of it")) as server:
        assert (await retry(server, clock)).text == "the whole of it"
        assert len(server.requests) == 2
    assert clock.waits == [1]


async def test_done_ends_an_answer_of_a_server_that_gives_no_finish_reason() -> None:
    assert (await ask("openai", OnlyDone("the whole of it"))).text == "the whole of it"


@pytest.mark.parametrize("kind", VENDORS)
async def test_one_request_is_sent_for_one_attempt(kind: Vendor) -> None:
    """The libraries' own retries are off."""
    for turn in (Fail(500), Fail(429, retry_after="1"), Fail(503)):
        async with vendor(kind, turn) as server, model_of(server) as model:
            with pytest.raises(RetinueError):
                await model.complete(PROMPT, ignore_text)
            assert len(server.requests) == 1, turn


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_connection_that_breaks_or_fails_is_unavailable(kind: Vendor) -> None:
    error = await fail(kind, Cut())
    assert isinstance(error, ModelError)
    assert error.reason == "unavailable"
    assert error.is_lost
    async with vendor(kind, Say("ok")) as server:
        gone = server
    async with model_of(gone) as model:
        with pytest.raises(ModelError) as caught:
            await model.complete(PROMPT, ignore_text)
    assert caught.value.reason == "unavailable"
    assert not caught.value.is_lost, "nothing was sent"


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("body", [b"data: {this is not json\n\n", b"<html>proxy error</html>", b""])
async def test_an_answer_that_is_not_of_the_format_is_a_clear_error(kind: Vendor, body: bytes) -> None:
    error = await fail(kind, Garbage(body))
    assert isinstance(error, ModelError)
    assert error.reason in ("malformed", "empty", "unavailable")


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_answer_that_stops_coming_times_out(kind: Vendor) -> None:
    error = await fail(kind, Hang(), timeout_s=0.3)
    assert isinstance(error, CallTimedOutError)
    assert error.layer == "model"
    assert "llm.tester.timeout_s" in error.remedy


@pytest.mark.parametrize("kind", VENDORS)
async def test_cancelling_closes_the_request(kind: Vendor) -> None:
    async with vendor(kind, Hang()) as server, model_of(server) as model:
        task = asyncio.create_task(model.complete(PROMPT, ignore_text))
        async with asyncio.timeout(60):
            await server.begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.gone.wait()


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_redirect_is_not_followed(kind: Vendor) -> None:
    async with vendor(kind, Say("mine now")) as thief, vendor(kind, Move(thief.url)) as server:
        async with model_of(server) as model:
            with pytest.raises(ModelError):
                await model.complete(PROMPT, ignore_text)
        assert thief.requests == []


class Clock:
    """Records the waits of the retry policy instead of waiting."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)


async def retry(
    server: VendorServer, sleep: Callable[[float], Awaitable[None]], **options: Any
) -> ModelReply:
    options = {"retries": 3, "deadline": None, **options}
    async with model_of(server) as model:
        return await complete_with_retries(model, PROMPT, ignore_text, sleep=sleep, **options)


@pytest.mark.parametrize("kind", VENDORS)
async def test_the_retry_policy_waits_as_long_as_the_provider_says_else_doubles(kind: Vendor) -> None:
    clock = Clock()
    async with vendor(kind, Fail(429, retry_after="7"), Fail(500), Cut(), Say("ok")) as server:
        assert (await retry(server, clock)).text == "ok"
        assert len(server.requests) == 4
    assert clock.waits == [7, 2, 4]


async def test_a_refusal_is_not_repeated_and_the_last_failure_is_raised() -> None:
    clock = Clock()
    async with vendor("anthropic", Refuse()) as server:
        with pytest.raises(ModelError):
            await retry(server, clock)
        assert len(server.requests) == 1
    async with vendor("anthropic", Fail(500)) as server:
        with pytest.raises(ModelError):
            await retry(server, clock, retries=2)
        assert len(server.requests) == 3
    assert clock.waits == [1, 2]


async def test_a_wait_beyond_the_deadline_or_a_minute_is_not_begun() -> None:
    clock = Clock()
    began = time.monotonic()
    async with vendor("openai", Fail(429, retry_after="30")) as server:
        with pytest.raises(BusyError) as caught:
            await retry(server, clock, deadline=asyncio.get_running_loop().time() + 10)
        assert caught.value.retry_after_s == 30
        assert len(server.requests) == 1
    async with vendor("openai", Fail(429, retry_after="3600")) as server:
        with pytest.raises(BusyError):
            await retry(server, clock)
        assert len(server.requests) == 1
    assert clock.waits == []
    assert time.monotonic() - began < 10
