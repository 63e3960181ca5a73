"""Conversations with tools over the wire formats of the vendors."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic_ai.messages import ModelResponse, TextPart

from retinue.core.call import Part
from retinue.core.errors import BusyError, InvalidParametersError, ModelError, RetinueError
from retinue.llm.api_model import ApiModel
from retinue.llm.api_replies import ReplyMaker
from retinue.llm.completion import ModelPrompt, ModelReply, Usage, ignore_text
from retinue.llm.spec import ModelSpec
from retinue.thinking.completion import (
    AssistantMessage,
    CompletionReply,
    CompletionRequest,
    Message,
    Tool,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from tests.llm.vendors import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    VENDORS,
    Act,
    EndEarly,
    Fail,
    Refuse,
    Say,
    ToolCall,
    Turn,
    Vendor,
    VendorServer,
    vendor,
)
from tests.thinking.conversations import requests

KEY = "sk-very-secret-0123456789abcdef"
MODELS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-5.6-terra", "google": "gemini-3.8-flash"}
QUESTION = UserMessage((Part.text("How warm is it in Rome and in Oslo?"),))
WEATHER = Tool(
    "weather", "The weather of a city", {"type": "object", "properties": {"city": {"type": "string"}}}
)
ROME, OSLO = ToolCall("weather", '{"city": "Rome"}', "c1"), ToolCall("weather", '{"city": "Oslo"}', "c2")
PNG = b"\x89PNG not a real image"
OUTPUT = {"type": "object", "properties": {"warmer": {"type": "string"}}, "required": ["warmer"]}


def ask(*messages: Message, **fields: Any) -> CompletionRequest:
    return CompletionRequest("Be brief.", messages or (QUESTION,), **{"tools": (WEATHER,), **fields})


def results_of(reply: CompletionReply, *contents: Part, is_error: bool = False) -> ToolMessage:
    content = contents or (Part.text("31 degrees"),)
    return ToolMessage(tuple(ToolResult(call.id, call.name, content, is_error) for call in reply.calls))


class Talk:
    """A model over one fake vendor, and the requests that it sent."""

    def __init__(self, server: VendorServer, model: str = "") -> None:
        spec = ModelSpec(
            "tester",
            server.vendor,
            model=model or MODELS[server.vendor],
            base_url=server.base_url,
            api_key_env="K",
        )
        self.server = server
        self.model = ApiModel(spec, KEY)
        self.usages: list[Usage] = []
        self.text = ""

    async def send(self, request: CompletionRequest) -> ModelReply:
        async def take(piece: str) -> None:
            self.text += piece

        return await self.model.complete(ModelPrompt("", "", 500, request), take, self.usages.append)

    async def reply(self, request: CompletionRequest) -> CompletionReply:
        reply = (await self.send(request)).completion
        assert reply is not None
        # as it is in a journal
        return CompletionReply.from_json(json.loads(json.dumps(reply.to_json())))


@asynccontextmanager
async def talk_to(kind: Vendor, *turns: Turn, model: str = "") -> AsyncIterator[Talk]:
    async with vendor(kind, *turns) as server:
        talk = Talk(server, model)
        try:
            yield talk
        finally:
            await talk.model.aclose()


async def reply_to(kind: Vendor, request: CompletionRequest, *turns: Turn) -> CompletionReply:
    async with talk_to(kind, *turns) as talk:
        return await talk.reply(request)


@pytest.mark.parametrize("kind", VENDORS)
async def test_parallel_calls_come_with_text_usage_and_history(kind: Vendor) -> None:
    async with talk_to(kind, Act((ROME, OSLO), "Let me look.", cached=5)) as talk:
        sent = await talk.send(ask())
    reply = sent.completion
    assert reply is not None
    assert [(call.id, call.name, call.arguments) for call in reply.calls] == [
        ("c1", "weather", {"city": "Rome"}),
        ("c2", "weather", {"city": "Oslo"}),
    ]
    assert (reply.text, reply.finish, reply.provider) == ("Let me look.", "calls", kind)
    assert talk.text == "Let me look."
    assert reply.model == f"model-of-{kind}"
    assert sent.usage == Usage(INPUT_TOKENS, OUTPUT_TOKENS, cached_tokens=5)
    assert KEY not in json.dumps(reply.to_json())
    assert talk.server.url not in json.dumps(reply.history["response"])


def tool_names(body: dict[str, Any]) -> list[str]:
    """The names of the tools in a request of any vendor."""
    rows = body.get("tools", [])
    if rows and "functionDeclarations" in rows[0]:
        rows = rows[0]["functionDeclarations"]
    return [row.get("name") or row["function"]["name"] for row in rows]


@pytest.mark.parametrize("kind", VENDORS)
async def test_the_results_of_all_calls_go_back_with_the_reply_before_them(kind: Vendor) -> None:
    async with talk_to(kind, Act((ROME, OSLO)), Say("Rome.")) as talk:
        first = await talk.reply(ask())
        last = await talk.reply(ask(QUESTION, AssistantMessage(first), results_of(first)))
    assert (last.text, last.finish, last.calls) == ("Rome.", "stop", ())
    body = talk.server.requests[1]
    if kind == "anthropic":
        assert [block["id"] for block in body["messages"][1]["content"]] == ["c1", "c2"]
        assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["c1", "c2"]
    elif kind == "openai":
        assert [call["id"] for call in body["messages"][2]["tool_calls"]] == ["c1", "c2"]
        assert [row["tool_call_id"] for row in body["messages"][3:]] == ["c1", "c2"]
    else:
        assert [part["functionCall"]["id"] for part in body["contents"][1]["parts"]] == ["c1", "c2"]
        assert [part["functionResponse"]["id"] for part in body["contents"][2]["parts"]] == ["c1", "c2"]
    assert tool_names(body) == ["weather"]


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_conversation_that_grows_keeps_the_bytes_of_its_beginning(kind: Vendor) -> None:
    async with talk_to(kind, Act((ROME,), "Looking.", "Hm.", "c2ln"), Act((OSLO,)), Say("Rome.")) as talk:
        messages: list[Message] = [QUESTION]
        for _ in range(2):
            reply = await talk.reply(ask(*messages))
            messages += [AssistantMessage(reply), results_of(reply)]
        await talk.reply(ask(*messages))
    rows = "contents" if kind == "google" else "messages"
    for before, after in zip(talk.server.requests, talk.server.requests[1:], strict=False):
        assert after[rows][: len(before[rows])] == before[rows]
        assert {key: after[key] for key in after if key != rows} == {
            key: before[key] for key in before if key != rows
        }


@pytest.mark.parametrize("kind", VENDORS)
async def test_signatures_of_thinking_go_back_unchanged_to_the_same_model(kind: Vendor) -> None:
    async with talk_to(kind, Act((ROME,), "", "Rome is south.", "c2lnbmF0dXJl"), Say("ok")) as talk:
        reply = await talk.reply(ask())
        await talk.reply(ask(QUESTION, AssistantMessage(reply), results_of(reply)))
    sent = json.dumps(talk.server.requests[1])
    assert "Rome is south." in sent
    assert kind == "openai" or "c2lnbmF0dXJl" in sent
    assert "Rome is south." not in reply.text


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("other", ["provider", "model", "server"])
async def test_signatures_and_thinking_never_go_to_another_model(kind: Vendor, other: str) -> None:
    target: Vendor = "openai" if kind == "anthropic" else "anthropic"
    target = target if other == "provider" else kind
    answer = Act((ROME, OSLO), "Looking.", "Rome is south.", "c2lnbmF0dXJl")
    async with (
        talk_to(kind, answer) as maker,
        talk_to(target, Say("ok"), model="another" if other == "model" else "") as reader,
    ):
        reply = await maker.reply(ask())
        if other == "model":
            # the same server under another model
            reply.history["from"]["server"] = reader.server.base_url
        await reader.reply(ask(QUESTION, AssistantMessage(reply), results_of(reply)))
        sent = json.dumps(reader.server.requests[0])
    assert "c2lnbmF0dXJl" not in sent
    assert "Rome is south." not in sent
    assert "Looking." in sent
    assert sent.count("31 degrees") == 2
    assert sent.count('"weather"') >= 3  # the tool and two calls


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_history_that_cannot_be_read_is_replaced_by_text_and_calls(kind: Vendor) -> None:
    async with talk_to(kind, Act((ROME,), "Looking.", "Hm.", "c2ln"), Say("ok")) as talk:
        reply = await talk.reply(ask())
        damages: list[Any] = [{"parts": [{"part_kind": "new"}]}, {}, "text", {"parts": []}]
        for damage in damages:
            reply.history["response"] = damage
            sent = await talk.send(ask(QUESTION, AssistantMessage(reply), results_of(reply)))
            assert "thinking was left out" in sent.warnings[0]
            assert "Looking." in json.dumps(talk.server.requests[-1])
            assert "c2ln" not in json.dumps(talk.server.requests[-1])


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
@pytest.mark.parametrize("text", ['{"city": "Ro', "Rome", "[1]", '{"city": NaN}', '{"n": 1e999}'])
async def test_arguments_that_are_no_json_object_stay_text_and_can_go_back(kind: Vendor, text: str) -> None:
    async with talk_to(kind, Act((ToolCall("weather", text),)), Say("Sorry.")) as talk:
        reply = await talk.reply(ask())
        assert [call.arguments for call in reply.calls] == [text]
        results = results_of(reply, Part.text("the arguments are no JSON object"), is_error=True)
        assert (await talk.reply(ask(QUESTION, AssistantMessage(reply), results))).text == "Sorry."


@pytest.mark.parametrize("kind", VENDORS)
async def test_calls_with_repeated_or_missing_ids_get_different_ones(kind: Vendor) -> None:
    same = (ToolCall("weather", '{"city": "Rome"}', "c1"), ToolCall("weather", '{"city": "Oslo"}', "c1"))
    if kind == "google":
        same = (ToolCall("weather", '{"city": "Rome"}', ""), ToolCall("weather", '{"city": "Oslo"}', ""))
    async with talk_to(kind, Act(same), Say("ok")) as talk:
        reply = await talk.reply(ask())
        assert len({call.id for call in reply.calls}) == len(reply.calls)
        await talk.reply(ask(QUESTION, AssistantMessage(reply), results_of(reply)))
    for call in reply.calls:
        assert json.dumps(talk.server.requests[1]).count(f'"{call.id}"') == 2


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_made_up_tool_and_an_odd_id_of_another_model_can_go_back(kind: Vendor) -> None:
    foreign = CompletionReply.from_json(
        {
            "text": "",
            "calls": [{"id": "functions.look up:0 " + "x" * 60, "name": "look up!", "arguments": {}}],
            "finish": "calls",
        }
    )
    async with talk_to(kind, Say("ok")) as talk:
        await talk.reply(ask(QUESTION, AssistantMessage(foreign), results_of(foreign)))
    sent = json.dumps(talk.server.requests[0])
    assert "look up!" not in sent
    assert sent.count("t_look_up_") >= 1
    assert "functions.look" not in sent


@pytest.mark.parametrize("kind", VENDORS)
async def test_images_go_to_the_model_in_messages_and_in_results(kind: Vendor) -> None:
    picture = Part.image(PNG)
    async with talk_to(kind, Act((ROME,)), Say("a map")) as talk:
        question = UserMessage((Part.text("What is this?"), picture))
        reply = await talk.reply(ask(question))
        await talk.reply(ask(question, AssistantMessage(reply), results_of(reply, Part.text("see"), picture)))
    data = b64encode(PNG).decode()
    assert json.dumps(talk.server.requests[0]).count(data) == 1
    assert json.dumps(talk.server.requests[1]).count(data) == 2
    assert "image/png" in json.dumps(talk.server.requests[1])


@pytest.mark.parametrize("kind", VENDORS)
async def test_content_that_a_provider_cannot_read_is_left_out_with_a_warning(kind: Vendor) -> None:
    odd = Part("file", b64encode(b"PK..").decode(), "application/zip")
    text = Part("file", b64encode("naïve".encode()).decode(), "text/csv; charset=utf-8")
    async with talk_to(kind, Say("ok")) as talk:
        sent = await talk.send(ask(UserMessage((odd, text))))
    assert sent.warnings == ("the model cannot read application/zip, so it was left out of messages[0]",)
    assert "4 bytes: left out" in json.dumps(talk.server.requests[0])
    assert "naïve" in json.dumps(talk.server.requests[0], ensure_ascii=False)


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_damaged_image_is_a_typed_error_before_any_request(kind: Vendor) -> None:
    async with talk_to(kind, Say("ok")) as talk:
        with pytest.raises(InvalidParametersError, match=r"messages\[0\]: expected base64"):
            await talk.reply(ask(UserMessage((Part("image", "no base64!", "image/png"),))))
        assert talk.server.requests == []


@pytest.mark.parametrize("kind", VENDORS)
async def test_without_a_choice_the_tools_stay_in_the_request_and_calls_are_forbidden(kind: Vendor) -> None:
    async with talk_to(kind, Say("ok")) as talk:
        await talk.reply(ask(tool_choice="auto"))
        await talk.reply(ask(tool_choice="none"))
    free, bound = talk.server.requests
    assert tool_names(free) == tool_names(bound) == ["weather"]
    if kind == "anthropic":
        assert bound["tool_choice"] == {"type": "none"}
    elif kind == "openai":
        assert bound["tool_choice"] == "none"
    else:
        assert bound["toolConfig"]["functionCallingConfig"]["mode"] == "NONE"
    assert "none" not in json.dumps(free).lower()


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("turn", [Refuse(), Say("I will", "filter"), Act((ROME,), ends="filter")], ids=str)
async def test_a_refusal_is_a_reply_and_no_error(kind: Vendor, turn: Turn) -> None:
    reply = await reply_to(kind, ask(), turn)
    assert reply.finish == "refused"
    assert reply.output is None


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_refusal_can_go_back_when_the_conversation_goes_on(kind: Vendor) -> None:
    async with talk_to(kind, Refuse(), Say("ok")) as talk:
        reply = await talk.reply(ask())
        again = ask(QUESTION, AssistantMessage(reply), UserMessage((Part.text("Then only Rome."),)))
        assert (await talk.reply(again)).text == "ok"


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_cut_reply_says_so_and_keeps_its_calls(kind: Vendor) -> None:
    cut = ToolCall("weather", '{"city": "Os', "c2")
    async with talk_to(kind, Act((ROME, cut), ends="length"), Say("ok")) as talk:
        sent = await talk.send(ask())
        assert sent.is_cut
        reply = sent.completion
        assert reply is not None
        assert (reply.finish, len(reply.calls)) == ("length", 2)
        results = results_of(reply, Part.text("not run: the reply was cut"), is_error=True)
        assert (await talk.reply(ask(QUESTION, AssistantMessage(reply), results))).text == "ok"


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("stops", ["end", "drop"])
async def test_a_stream_that_stops_within_a_call_is_no_reply(kind: Vendor, stops: Any) -> None:
    long = ToolCall("weather", json.dumps({"city": "Rome" * 50}), "c1")
    async with talk_to(kind, Act((long,), stops=stops)) as talk:
        with pytest.raises(ModelError) as caught:
            await talk.reply(ask())
    assert caught.value.reason == "unavailable"
    assert caught.value.kind.retryable
    # what came of it was paid
    assert len(talk.usages) == 1
    assert talk.usages[0].output_tokens > 0


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_answer_without_text_and_calls_is_an_error(kind: Vendor) -> None:
    for turn in (Say(""), EndEarly("")):
        with pytest.raises(ModelError):
            await reply_to(kind, ask(), turn)


@pytest.mark.parametrize("kind", VENDORS)
async def test_rate_limits_and_server_errors_are_those_of_the_retry_policy(kind: Vendor) -> None:
    with pytest.raises(BusyError) as busy:
        await reply_to(kind, ask(), Fail(429, retry_after="7"))
    assert busy.value.retry_after_s == 7
    with pytest.raises(ModelError) as failed:
        await reply_to(kind, ask(), Fail(500, message=f"the key {KEY} broke"))
    assert failed.value.reason == "unavailable"
    assert KEY not in failed.value.message
    with pytest.raises(ModelError) as rejected:
        await reply_to(kind, ask(), Fail(400, "invalid_request_error", "tools.0.name is wrong"))
    assert rejected.value.reason == "rejected"


@pytest.mark.parametrize("kind", VENDORS)
async def test_native_output_comes_as_text_and_as_a_value_beside_the_tools(kind: Vendor) -> None:
    async with talk_to(kind, Say('{"warmer": "Rome"}')) as talk:
        reply = await talk.reply(ask(output_schema=OUTPUT))
    assert reply.output == {"warmer": "Rome"}
    assert tool_names(talk.server.requests[0]) == ["weather"]
    assert "warmer" in json.dumps(talk.server.requests[0])


async def test_a_schema_without_a_native_form_becomes_a_tool_whose_call_is_the_output() -> None:
    schema = {"type": "object", "properties": {"facts": {"type": "object"}}}
    answer = ToolCall("retinue_final_answer", '{"facts": {"Rome": 31}}', "f1")
    for kind in VENDORS:
        async with talk_to(kind, Act((answer,)), Say("31")) as talk:
            reply = await talk.reply(ask(output_schema=schema))
            assert (reply.output, reply.calls, reply.finish) == ({"facts": {"Rome": 31}}, (), "stop")
            assert tool_names(talk.server.requests[0]) == ["weather", "retinue_final_answer"]
            # the conversation goes on
            more = ask(QUESTION, AssistantMessage(reply), UserMessage((Part.text("And why?"),)))
            assert (await talk.reply(more)).text == "31"
            assert "Received." in json.dumps(talk.server.requests[1])


async def test_an_output_beside_other_calls_waits_for_their_results() -> None:
    schema = {"type": "object"}
    answer = ToolCall("retinue_final_answer", '{"guess": 1}', "f1")
    for kind in VENDORS:
        async with talk_to(kind, Act((ROME, answer)), Act((answer,))) as talk:
            first = await talk.reply(ask(output_schema=schema))
            assert (first.output, [call.id for call in first.calls], first.finish) == (None, ["c1"], "calls")
            second = await talk.reply(
                ask(QUESTION, AssistantMessage(first), results_of(first), output_schema=schema)
            )
            assert second.output == {"guess": 1}
            assert "give the answer again" in json.dumps(talk.server.requests[1])


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_output_in_other_words_is_no_output(kind: Vendor) -> None:
    reply = await reply_to(kind, ask(output_schema=OUTPUT), Say("It is warmer in Rome."))
    assert (reply.output, reply.text) == (None, "It is warmer in Rome.")
    fenced = await reply_to(kind, ask(output_schema=OUTPUT), Say('```json\n{"warmer": "Rome",}\n```'))
    assert fenced.output == {"warmer": "Rome"}


async def test_prompts_are_cached_where_the_provider_has_to_be_told() -> None:
    async with talk_to("anthropic", Act((ROME,), cached=3, written=4), Say("ok")) as talk:
        sent = await talk.send(ask())
        await talk.model.complete(ModelPrompt("Be brief.", "once", 10), ignore_text)
    assert sent.usage == Usage(INPUT_TOKENS, OUTPUT_TOKENS, cached_tokens=3, cache_write_tokens=4)
    loop, single = talk.server.requests
    assert loop["cache_control"]["type"] == "ephemeral"
    assert "cache_control" in loop["tools"][-1]
    assert "cache_control" not in json.dumps(single)
    # a server that only takes the requests of OpenAI does not know its newer fields
    async with talk_to("openai", Say("ok")) as talk:
        await talk.reply(ask())
    assert "cache" not in json.dumps(talk.server.requests[0])


@pytest.mark.parametrize("kind", VENDORS)
@given(request=requests)
@settings(max_examples=8, deadline=None)
def test_any_conversation_is_sent_or_refused_with_a_typed_error(
    kind: Vendor, request: CompletionRequest
) -> None:
    async def send() -> None:
        async with talk_to(kind, Say("ok")) as talk:
            try:
                sent = await talk.send(request)
            except RetinueError:
                assert talk.server.requests == []
                return
            assert sent.text == "ok"
            assert len(talk.server.requests) == 1

    asyncio.run(send())


def test_a_history_holds_no_credentials_of_the_server() -> None:
    url = "https://ada:hunter2@models.test/v1?api_key=s3cret99"
    spec = ModelSpec("x", "openai", "api", model="m", base_url=url)
    maker = ReplyMaker(spec)
    reply = maker.read(ModelResponse(parts=[TextPart("x")], provider_url=url), wants_output=False)
    text = json.dumps(reply.to_json())
    assert "models.test" in text
    assert "hunter2" not in text
    assert "s3cret99" not in text
    assert maker.is_own(reply)
