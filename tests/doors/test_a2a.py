"""A2A at an agent and through the hub: messages, tasks, streams, questions, cancelling."""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card as parse_with_sdk
from a2a.compat.v0_3.types import AgentCard as LegacyCard
from a2a.types import a2a_pb2 as types
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]

from retinue.a2a.server.task_table import MAX_ASKING_OF_A_CALLER
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Part
from retinue.core.errors import ExecutionFailedError
from tests.a2a.wire import ask, call, find_facts, message, naming, parts_of, read_events, send, state_of
from tests.system import WAIT_S, System, Wire


class Bench:
    """An agent, and what its skills have seen."""

    def __init__(self) -> None:
        self.agent = Agent("bench", version="1.0.0", description="For tests")
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stopped = asyncio.Event()
        self.calls: list[Any] = []
        agent = self.agent

        @agent.skill
        async def greet(name: str, times: int = 1) -> str:
            """Says hello."""
            self.calls.append((name, times))
            return f"hello {name}" * times

        @agent.skill
        async def measure(text: str) -> dict[str, Any]:
            """Counts."""
            return {"length": len(text)}

        @agent.skill
        async def draw() -> Any:
            """A picture with a caption."""
            return ["as asked:", Part.image(b"png")]

        @agent.skill
        async def fail() -> str:
            """Fails."""
            raise ExecutionFailedError("the disk is on fire", remedy="use water")

        @agent.skill
        async def wait(ctx: Context) -> str:
            """Works until it may end."""
            self.begun.set()
            try:
                await ctx.progress(0.5, "half")
                await ctx.log("looking", level="warning", data={"at": "shelf"})
                await self.go_on.wait()
            finally:
                self.stopped.set()
            return "done"

        @agent.skill
        async def order(ctx: Context) -> dict[str, Any]:
            """Asks twice."""
            form = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
            size = await ctx.elicit("Which size?", form)
            return {"size": size["size"], "name": await ctx.elicit("Which name?", str)}

        @agent.skill
        async def count_files(files: list[dict[str, Any]]) -> int:
            """Takes files."""
            return len(files)


@pytest.fixture
async def bench(system: System) -> Bench:
    return Bench()


@pytest.fixture
async def url(system: System, bench: Bench) -> str:
    return (await system.start_agent(bench.agent)).url


async def ended(wire: Wire, url: str, task_id: str) -> Any:
    """The task when it has ended."""
    async with asyncio.timeout(WAIT_S):
        while True:
            task = (await ask(wire, url, "GetTask", {"id": task_id})).result
            if state_of(task) not in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"):
                return task


async def test_a_data_part_names_the_skill_and_its_arguments(wire: Wire, url: str) -> None:
    task = await call(wire, url, "greet", name="Ann", times=2)
    assert state_of(task) == "TASK_STATE_COMPLETED"
    assert parts_of(task) == [{"text": "hello Annhello Ann"}]
    assert task["artifacts"][0]["name"] == "greet"
    assert [one["role"] for one in task["history"]] == ["ROLE_USER"]


async def test_a_message_that_is_sent_again_has_the_task_of_the_first(
    system: System, wire: Wire, url: str, bench: Bench
) -> None:
    params = {"message": message(naming("wait"))}
    waiting = [asyncio.create_task(ask(wire, url, "SendMessage", params)) for _ in range(2)]
    await bench.begun.wait()
    later = await ask(wire, url, "SendMessage", {**params, "configuration": {"returnImmediately": True}})
    assert state_of(later.result["task"]) == "TASK_STATE_WORKING"
    bench.go_on.set()
    tasks = [(await one).result["task"] for one in waiting]
    tasks.append((await ask(wire, url, "SendMessage", params)).result["task"])
    events = read_events((await ask(wire, url, "SendStreamingMessage", params)).body)
    tasks += [event["task"] for event in events]
    assert {task["id"] for task in tasks} == {later.result["task"]["id"]}
    assert {state_of(task) for task in tasks} == {"TASK_STATE_COMPLETED"}

    greeting = message(naming("greet", name="Ann"))
    other = {**message(naming("greet", name="Bo")), "messageId": greeting["messageId"]}
    stranger = {"authorization": system.token}
    for params, headers in ((greeting, {}), (greeting, {}), (other, {}), (other, stranger), (other, {})):
        assert (await ask(wire, url, "SendMessage", {"message": params}, **headers)).result["task"]
    assert bench.calls == [("Ann", 1), ("Bo", 1), ("Bo", 1)]


async def test_a_message_that_is_sent_again_with_a_receiver_of_notifications_is_another_request(
    wire: Wire, url: str
) -> None:
    params = {"message": message(naming("greet", name="Ann"))}
    assert (await ask(wire, url, "SendMessage", params)).result["task"]
    push = {"taskPushNotificationConfig": {"url": "http://127.0.0.1:9/"}}
    again = await ask(wire, url, "SendMessage", {**params, "configuration": push})
    assert (again.error["code"], "push notification url is refused" in again.error["message"]) == (
        -32602,
        True,
    )


async def test_metadata_names_the_skill_and_text_is_its_only_required_string(wire: Wire, url: str) -> None:
    result = await send(wire, url, "Ben", metadata={"skill": "greet"})
    assert parts_of(result["task"]) == [{"text": "hello Ben"}]
    whole = {"skill": "greet", "arguments": {"name": "Cy"}}
    assert parts_of((await send(wire, url, "ignored", metadata=whole))["task"]) == [{"text": "hello Cy"}]
    params = {"message": message("Di"), "metadata": {"skill": "measure"}}
    assert parts_of((await ask(wire, url, "SendMessage", params)).result["task"]) == [{"data": {"length": 2}}]


async def test_an_agent_with_one_skill_needs_no_name_of_it(system: System, wire: Wire) -> None:
    echo = Agent("echo", version="1.0.0")

    @echo.skill
    async def say(text: str) -> str:
        """Says it."""
        return text.upper()

    served = await system.start_agent(echo)
    for base in (served.url, f"{served.url}/"):
        assert parts_of((await send(wire, base, "hush"))["task"]) == [{"text": "HUSH"}]


async def test_a_message_that_names_no_skill_is_told_which_there_are(wire: Wire, url: str) -> None:
    reply = await ask(wire, url, "SendMessage", {"message": message("hello?")})
    assert reply.error["code"] == -32602
    assert "greet, measure, draw" in reply.error["message"]
    assert '"skill"' in reply.error["message"]


@pytest.mark.parametrize(
    ("skill", "arguments", "kind"),
    [
        ("vanish", {}, "unknown_skill"),
        ("greet", {}, "validation_error"),
        ("greet", {"name": 1}, "validation_error"),
    ],
)
async def test_a_refused_call_is_an_error_and_no_task(
    wire: Wire, url: str, bench: Bench, skill: str, arguments: dict[str, Any], kind: str
) -> None:
    reply = await ask(wire, url, "SendMessage", {"message": message(naming(skill, **arguments))})
    assert (reply.status, reply.error["code"]) == (200, -32602)
    assert find_facts(reply.error["data"])["type"] == kind
    assert reply.error["data"][0]["reason"] == kind.upper()
    assert (await ask(wire, url, "ListTasks", {})).result["totalSize"] == 0
    assert bench.calls == []
    old = await ask(wire, url, "message/send", {"message": old_message(naming(skill, **arguments))})
    assert old.error["data"]["type"] == kind


async def test_a_call_that_fails_is_a_failed_task_with_the_reason_and_the_remedy(
    wire: Wire, url: str
) -> None:
    task = await call(wire, url, "fail")
    said = task["status"]["message"]
    assert state_of(task) == "TASK_STATE_FAILED"
    assert "the disk is on fire" in said["parts"][0]["text"]
    assert "use water" in said["parts"][0]["text"]
    assert said["metadata"]["error"]["type"] == "execution_error"
    assert "artifacts" not in task


async def test_parts_of_a_result_are_parts_of_the_artifact(wire: Wire, url: str) -> None:
    png = base64.b64encode(b"png").decode()
    assert parts_of(await call(wire, url, "draw")) == [
        {"text": "as asked:"},
        {"raw": png, "mediaType": "image/png"},
    ]


async def test_files_go_to_a_skill_that_takes_them_and_are_refused_otherwise(wire: Wire, url: str) -> None:
    file = {"raw": base64.b64encode(b"x").decode(), "mediaType": "text/plain", "filename": "x.txt"}
    task = (await send(wire, url, file, {"url": "https://example.org/y"}, metadata={"skill": "count_files"}))[
        "task"
    ]
    assert parts_of(task) == [{"data": 2}]
    refused = await ask(wire, url, "SendMessage", {"message": message(file, metadata={"skill": "measure"})})
    assert refused.error["code"] == -32005


async def test_a_stream_begins_with_the_task_and_ends_with_its_end(
    wire: Wire, url: str, bench: Bench
) -> None:
    bench.go_on.set()
    reply = await ask(wire, url, "SendStreamingMessage", {"message": message(naming("wait"))})
    assert reply.headers["content-type"] == "text/event-stream"
    events = read_events(reply.body)
    assert [next(iter(one)) for one in events] == [
        "task",
        *["statusUpdate"] * 2,
        "artifactUpdate",
        "statusUpdate",
    ]
    assert "artifacts" not in events[0]["task"]
    progress, log = events[1]["statusUpdate"], events[2]["statusUpdate"]
    assert (progress["metadata"], progress["status"]["message"]["parts"]) == (
        {"progress": 0.5},
        [{"text": "half"}],
    )
    assert log["metadata"] == {"log": {"level": "warning", "data": {"at": "shelf"}}}
    assert events[3]["artifactUpdate"]["artifact"]["parts"] == [{"text": "done"}]
    assert events[4]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_an_error_before_a_stream_begins_is_one_answer(wire: Wire, url: str) -> None:
    reply = await ask(wire, url, "SendStreamingMessage", {"message": message(naming("greet"))})
    assert reply.error["code"] == -32602


async def test_a_client_that_does_not_wait_asks_later(wire: Wire, url: str, bench: Bench) -> None:
    params = {"message": message(naming("wait")), "configuration": {"returnImmediately": True}}
    task = (await ask(wire, url, "SendMessage", params)).result["task"]
    assert state_of(task) == "TASK_STATE_WORKING"
    bench.go_on.set()
    later = await ended(wire, url, task["id"])
    assert (state_of(later), parts_of(later)) == ("TASK_STATE_COMPLETED", [{"text": "done"}])


async def test_cancelling_a_task_cancels_its_call(wire: Wire, url: str, bench: Bench) -> None:
    params = {"message": message(naming("wait")), "configuration": {"returnImmediately": True}}
    task_id = (await ask(wire, url, "SendMessage", params)).result["task"]["id"]
    canceled = (await ask(wire, url, "CancelTask", {"id": task_id})).result
    assert state_of(canceled) == "TASK_STATE_CANCELED"
    assert bench.stopped.is_set()
    assert state_of((await ask(wire, url, "GetTask", {"id": task_id})).result) == "TASK_STATE_CANCELED"
    again = await ask(wire, url, "CancelTask", {"id": task_id})
    assert (again.error["code"], again.error["data"][0]["reason"]) == (-32002, "TASK_NOT_CANCELABLE")


async def test_whoever_subscribes_again_gets_the_task_and_what_follows(
    wire: Wire, url: str, bench: Bench
) -> None:
    params = {"message": message(naming("wait")), "configuration": {"returnImmediately": True}}
    task_id = (await ask(wire, url, "SendMessage", params)).result["task"]["id"]
    followers = [asyncio.create_task(ask(wire, url, "SubscribeToTask", {"id": task_id})) for _ in range(2)]
    await bench.begun.wait()
    async with asyncio.timeout(WAIT_S):
        while not all(await asyncio.gather(*(is_open(one) for one in followers))):
            pass
    bench.go_on.set()
    for follower in followers:
        events = read_events((await follower).body)
        assert next(iter(events[0])) == "task"
        assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    late = await ask(wire, url, "SubscribeToTask", {"id": task_id})
    assert late.error["code"] == -32004


async def is_open(request: asyncio.Task[Any]) -> bool:
    """Whether a request had its time to arrive."""
    await asyncio.sleep(0.01)
    return not request.done()


async def test_a_question_waits_for_the_next_message_of_its_task(wire: Wire, url: str) -> None:
    task = await call(wire, url, "order")
    asked = task["status"]["message"]
    assert state_of(task) == "TASK_STATE_INPUT_REQUIRED"
    assert asked["parts"] == [{"text": "Which size?"}]
    assert asked["metadata"]["schema"]["required"] == ["size"]
    same = {"taskId": task["id"]}
    again = (await send(wire, url, {"data": {"size": "big"}}, **same))["task"]
    assert state_of(again) == "TASK_STATE_INPUT_REQUIRED"
    assert "does not fit" in again["status"]["message"]["parts"][0]["text"]
    second = (await send(wire, url, "42", **same))["task"]
    assert second["status"]["message"]["parts"] == [{"text": "Which name?"}]
    done = (await send(wire, url, "Eva", contextId=task["contextId"], **same))["task"]
    assert parts_of(done) == [{"data": {"size": 42, "name": "Eva"}}]
    assert [one["role"] for one in done["history"]].count("ROLE_USER") == 4
    after = await ask(wire, url, "SendMessage", {"message": message("more", **same)})
    assert after.error["code"] == -32004


async def test_a_caller_has_only_so_many_open_questions(wire: Wire, url: str, system: System) -> None:
    asking = [await call(wire, url, "order") for _ in range(MAX_ASKING_OF_A_CALLER)]
    refused = await ask(wire, url, "SendMessage", {"message": message(naming("order"))})
    assert refused.error["code"] == -33029
    params = {"message": message(naming("order"))}
    other = await ask(wire, url, "SendMessage", params, authorization=system.token)
    assert state_of(other.result["task"]) == "TASK_STATE_INPUT_REQUIRED"
    await ask(wire, url, "CancelTask", {"id": asking[0]["id"]})
    assert state_of(await call(wire, url, "order")) == "TASK_STATE_INPUT_REQUIRED"


async def test_a_question_ends_a_stream_and_the_answer_opens_the_next(wire: Wire, url: str) -> None:
    first = read_events(
        (await ask(wire, url, "SendStreamingMessage", {"message": message(naming("order"))})).body
    )
    assert first[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    task_id = first[0]["task"]["id"]
    answer = {"message": message({"data": {"size": 3}}, taskId=task_id)}
    second = read_events((await ask(wire, url, "SendStreamingMessage", answer)).body)
    assert second[0]["task"]["id"] == task_id
    assert second[-1]["statusUpdate"]["status"]["message"]["parts"] == [{"text": "Which name?"}]


async def test_a_stream_for_a_repeated_message_ends_where_its_task_waits_for_an_answer(
    wire: Wire, url: str
) -> None:
    params = {"message": message(naming("order"))}
    async with asyncio.timeout(WAIT_S):
        first = read_events((await ask(wire, url, "SendStreamingMessage", params)).body)
        (again,) = read_events((await ask(wire, url, "SendStreamingMessage", params)).body)
    assert again["task"]["id"] == first[0]["task"]["id"]
    assert state_of(again["task"]) == "TASK_STATE_INPUT_REQUIRED"


async def test_a_message_for_another_context_or_an_unknown_task_is_refused(wire: Wire, url: str) -> None:
    task = await call(wire, url, "order")
    wrong = message("1", taskId=task["id"], contextId="another")
    assert (await ask(wire, url, "SendMessage", {"message": wrong})).error["code"] == -32602
    unknown = message("1", taskId="none")
    assert (await ask(wire, url, "SendMessage", {"message": unknown})).error["code"] == -32001


async def test_a_task_that_works_takes_no_message(wire: Wire, url: str, bench: Bench) -> None:
    params = {"message": message(naming("wait")), "configuration": {"returnImmediately": True}}
    task_id = (await ask(wire, url, "SendMessage", params)).result["task"]["id"]
    reply = await ask(wire, url, "SendMessage", {"message": message("faster", taskId=task_id)})
    assert reply.error["code"] == -32004
    bench.go_on.set()


async def test_tasks_are_listed_in_pages_the_last_changed_first(wire: Wire, url: str) -> None:
    made = [(await call(wire, url, "measure", text="x" * n))["id"] for n in range(5)]
    waiting = await call(wire, url, "order")
    first = (await ask(wire, url, "ListTasks", {"pageSize": 4})).result
    assert (len(first["tasks"]), first["totalSize"], first["pageSize"]) == (4, 6, 4)
    rest = (await ask(wire, url, "ListTasks", {"pageSize": 4, "pageToken": first["nextPageToken"]})).result
    ids = [task["id"] for task in (*first["tasks"], *rest["tasks"])]
    assert (sorted(ids), ids[0], rest["nextPageToken"]) == (sorted([*made, waiting["id"]]), waiting["id"], "")
    assert all("artifacts" not in task for task in first["tasks"])
    asking = (await ask(wire, url, "ListTasks", {"status": "TASK_STATE_INPUT_REQUIRED"})).result
    assert [task["id"] for task in asking["tasks"]] == [waiting["id"]]
    found = {"contextId": waiting["contextId"], "includeArtifacts": True, "historyLength": 0}
    one = (await ask(wire, url, "ListTasks", found)).result["tasks"]
    assert ([task["id"] for task in one], "history" in one[0]) == ([waiting["id"]], False)


async def test_a_caller_has_no_part_in_the_tasks_of_another(wire: Wire, url: str, system: System) -> None:
    task = await call(wire, url, "order")
    other = {"authorization": system.token}
    answer = {"message": message("1", taskId=task["id"])}
    for method, params in (
        ("GetTask", {"id": task["id"]}),
        ("CancelTask", {"id": task["id"]}),
        ("SubscribeToTask", {"id": task["id"]}),
        ("SendMessage", answer),
        ("ListTaskPushNotificationConfigs", {"taskId": task["id"]}),
    ):
        hidden = await ask(wire, url, method, params, **other)
        missing = await ask(wire, url, method, orjson_replace(params, task["id"], "nothing"), **other)
        assert hidden.body == missing.body.replace(b"nothing", task["id"].encode()), method
    assert (await ask(wire, url, "ListTasks", {}, **other)).result["totalSize"] == 0


def orjson_replace(params: Any, old: str, new: str) -> Any:
    """The parameters with another id."""
    if isinstance(params, dict):
        return {key: orjson_replace(value, old, new) for key, value in params.items()}
    return new if params == old else params


async def test_a_reply_can_be_a_message_without_a_task(wire: Wire, url: str) -> None:
    result = await send(wire, url, naming("greet", name="Flo"), metadata={"reply": "message"})
    assert result["message"]["parts"] == [{"text": "hello Flo"}]
    assert result["message"]["role"] == "ROLE_AGENT"
    assert (await ask(wire, url, "ListTasks", {})).result["totalSize"] == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":3}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"status":"TASK_STATE_DANCING"}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"status":3}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/list","params":{"status":"dancing"}}', -32602),
        (b"{", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}]', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"Dance"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[1]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x","historyLength":-1}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageSize":0}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageToken":"x"}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m"}}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"x"}}', -32001),
    ],
)
async def test_a_bad_request_is_answered_with_its_code(wire: Wire, url: str, body: bytes, code: int) -> None:
    reply = await wire.post(url, body, a2a_version="1.0")
    assert (reply.status, reply.error["code"]) == (200, code), reply.body
    has_readable_id = body.startswith(b'{"')
    assert reply.json["id"] == (1 if has_readable_id else None)


async def test_tasks_are_filtered_by_the_states_of_both_versions(wire: Wire, url: str) -> None:
    asking = await call(wire, url, "order")
    await call(wire, url, "measure", text="x")
    for method, state, count in (
        ("ListTasks", "TASK_STATE_INPUT_REQUIRED", 1),
        ("ListTasks", "TASK_STATE_AUTH_REQUIRED", 0),
        ("ListTasks", "TASK_STATE_UNSPECIFIED", 2),
        ("tasks/list", "input-required", 1),
        ("tasks/list", "unknown", 2),
    ):
        listed = (await ask(wire, url, method, {"status": state})).result["tasks"]
        assert len(listed) == count, (method, state)
    assert state_of(asking) == "TASK_STATE_INPUT_REQUIRED"


async def test_other_versions_and_other_media_types_have_their_codes(wire: Wire, url: str) -> None:
    params = {"message": message(naming("greet", name="x"))}
    for version, is_known in (
        ("99.0", False),
        ("1.1", False),
        ("0.2", False),
        ("1.0.3", True),
        ("0.3", True),
    ):
        reply = await ask(wire, url, "SendMessage", params, **{"a2a-version": version})
        assert ("result" in reply.json) is is_known, version
        assert is_known or reply.error["code"] == -32009
    for base in (url, f"{url}/"):
        typed = await wire.post(base, b"{}", content_type="text/plain")
        assert (typed.status, typed.error["code"]) == (415, -32005)
        assert typed.error["data"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"


async def test_a_call_too_deep_keeps_its_code_in_both_versions(wire: Wire, url: str) -> None:
    deep = {"X-OpenStarry-Trace-ID": "chain", "X-OpenStarry-Trace-Depth": 6}
    told = message(naming("greet", name="x"), metadata=deep)
    reply = await ask(wire, url, "SendMessage", {"message": told})
    assert reply.error["code"] == -33007
    params = {"message": message(naming("greet", name="x"))}
    by_header = await ask(
        wire, url, "SendMessage", params, x_openstarry_trace_id="c", x_openstarry_trace_depth="6"
    )
    assert by_header.error["code"] == -33007
    old = await ask(
        wire, url, "message/send", {"message": old_message(naming("greet", name="x"))} | {"metadata": deep}
    )
    assert old.error["code"] == -33007


@pytest.mark.parametrize("through_hub", [False, True])
async def test_a_call_that_gets_too_deep_in_mid_task_has_its_code_and_facts_in_the_status(
    system: System, wire: Wire, through_hub: bool
) -> None:
    looping = Agent("looping", version="1.0.0")

    @looping.skill
    async def loop(ctx: Context) -> Any:
        """Calls itself after a report, so that its task is known to its client."""
        await ctx.progress(0.5, "once more")
        await asyncio.sleep(0.06)
        return await ctx.call("loop", agent="looping")

    base = (await system.start_agent(looping)).url
    if through_hub:
        base = f"{(await system.start_hub()).url}/agents/looping"
    task = (await send(wire, base, naming("loop")))["task"]
    assert state_of(task) == "TASK_STATE_FAILED"
    error = task["status"]["message"]["metadata"]["error"]
    assert (error["code"], error["type"]) == (-33007, "recursion_limit")
    assert (error["depth"], error["max_depth"]) == (6, 5)


def old_message(*parts: Any, **fields: Any) -> dict[str, Any]:
    """A message of 0.3."""
    read = [{"kind": "data", **part} if "data" in part else {"kind": "text", **part} for part in parts]
    return {"kind": "message", "messageId": str(uuid.uuid4()), "role": "user", "parts": read, **fields}


async def test_a_client_of_0_3_gets_tasks_and_events_of_0_3(wire: Wire, url: str, bench: Bench) -> None:
    bench.go_on.set()
    done = (
        await ask(wire, url, "message/send", {"message": old_message(naming("greet", name="Gil"))})
    ).result
    assert (done["kind"], done["status"]["state"]) == ("task", "completed")
    assert parts_of(done) == [{"kind": "text", "text": "hello Gil"}]
    assert done["history"][0]["role"] == "user"
    events = read_events(
        (await ask(wire, url, "message/stream", {"message": old_message(naming("wait"))})).body
    )
    assert [one["kind"] for one in events] == [
        *("task", "status-update", "status-update", "artifact-update", "status-update")
    ]
    assert [one.get("final") for one in events if one["kind"] == "status-update"] == [False, False, True]
    assert (await ask(wire, url, "tasks/get", {"id": done["id"]})).result["id"] == done["id"]
    assert (await ask(wire, url, "tasks/cancel", {"id": done["id"]})).error["code"] == -32002
    configuration = {"blocking": False}
    bench.go_on.clear()
    params = {"message": old_message(naming("wait")), "configuration": configuration}
    assert (await ask(wire, url, "message/send", params)).result["status"]["state"] == "working"
    bench.go_on.set()


async def test_the_hub_serves_every_agent_and_itself(system: System, wire: Wire, url: str) -> None:
    hub = await system.start_hub()
    for base in (f"{hub.url}/agents/bench", f"{hub.url}/agents/bench/"):
        task = await call(wire, base, "greet", name="Hal")
        assert parts_of(task) == [{"text": "hello Hal"}]
    elsewhere = await ask(wire, hub.url, "GetTask", {"id": task["id"]})
    assert elsewhere.error["code"] == -32001, "a task belongs to the endpoint of its agent"
    listed = await call(wire, hub.url, "list_agents")
    assert "bench" in {row["name"] for row in parts_of(listed)[0]["data"]["agents"]}
    asked = await call(wire, f"{hub.url}/agents/bench", "order")
    assert state_of(asked) == "TASK_STATE_INPUT_REQUIRED"
    answered = (await send(wire, f"{hub.url}/agents/bench", "7", taskId=asked["id"]))["task"]
    assert answered["status"]["message"]["parts"] == [{"text": "Which name?"}]


async def test_the_card_is_at_the_agent_and_at_the_hub(system: System, wire: Wire, url: str) -> None:
    hub = await system.start_hub()
    path = "/.well-known/agent-card.json"
    for base, shown in ((url, url), (f"{hub.url}/agents/bench", f"{hub.url}/agents/bench")):
        reply = await wire.get(base + path)
        assert reply.json["supportedInterfaces"][0]["url"] == shown
        assert "greet" in {skill["id"] for skill in reply.json["skills"]}
        assert reply.json["capabilities"]["pushNotifications"]
        again = await wire.get(base + path, if_none_match=reply.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        assert "max-age" in reply.headers["cache-control"]
        assert "last-modified" in reply.headers
        extended = (await ask(wire, base, "GetExtendedAgentCard", {})).result
        assert extended["name"] == "bench"
        assert "preferredTransport" not in extended
        old = (await ask(wire, base, "agent/getAuthenticatedExtendedCard", {})).result
        assert old["preferredTransport"] == "JSONRPC"
    assert (await wire.get(f"{hub.url}{path}")).json["name"] == "retinue"
    assert (await wire.get(f"{hub.url}/agents/nobody{path}")).status == 404


@pytest.mark.parametrize("place", ["agent", "hub", "agent of the hub"])
async def test_the_card_is_of_the_version_that_its_reader_asks_for(
    system: System, wire: Wire, url: str, place: str
) -> None:
    hub = await system.start_hub()
    base = {"agent": url, "hub": hub.url, "agent of the hub": f"{hub.url}/agents/bench"}[place]
    path = f"{base}/.well-known/agent-card.json"
    cards = {}
    for version in ("", "0.3", "0.3.0", "1.0", "1.0.2", "9.9"):
        headers = {"a2a-version": version} if version else {}
        reply = await wire.get(path, **headers)
        assert reply.headers["vary"] == "Authorization, A2A-Version"
        cards[version] = reply.json
        again = await wire.get(path, if_none_match=reply.headers["etag"], **headers)
        other = "0.3" if version.startswith(("1", "9")) else "1.0"
        changed = await wire.get(path, if_none_match=reply.headers["etag"], a2a_version=other)
        assert (again.status, changed.status) == (304, 200)
        assert again.headers["vary"] == reply.headers["vary"]
    for version, card in cards.items():
        interfaces = [one["protocolVersion"] for one in card["supportedInterfaces"]]
        assert interfaces == ["1.0", "0.3"]
        is_old = version in ("", "0.3", "0.3.0")
        assert ("url" in card, "protocolVersion" in card) == (is_old, is_old), version
        if is_old:
            LegacyCard.model_validate(card)
        else:
            ParseDict(card, types.AgentCard())
        parse_with_sdk(card)
    by_parameter = (await wire.get(f"{path}?A2A-Version=1.0")).json
    assert {**by_parameter, "signatures": 0} == {**cards["1.0"], "signatures": 0}


async def test_the_version_of_a_request_may_be_a_parameter_of_its_url(wire: Wire, url: str) -> None:
    params = {"message": message(naming("greet", name="x"))}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    assert (await wire.post(f"{url}/?A2A-Version=9.9", body)).error["code"] == -32009
    assert "task" in (await wire.post(f"{url}/?a2a-version=1.0", body)).result


async def test_the_card_carries_the_schemas_of_its_skills_in_the_extension(
    system: System, wire: Wire, url: str
) -> None:
    hub = await system.start_hub()
    for base in (url, f"{hub.url}/agents/bench"):
        card = (await wire.get(f"{base}/.well-known/agent-card.json")).json
        (extension,) = card["capabilities"]["extensions"]
        assert extension["uri"] == "https://retinue.dev/a2a/extensions/retinue/v1"
        assert not extension.get("required", False)
        schema = extension["params"]["schemas"]["greet"]["input"]
        assert schema["properties"]["name"]["type"] == "string"


QUERY = {"performative": "QUERY_CAPABILITIES", "payload": {"query_type": "summary"}}


async def test_an_envelope_in_a_data_part_is_answered_with_one(system: System, wire: Wire, url: str) -> None:
    hub = await system.start_hub()
    for base in (url, f"{hub.url}/agents/bench"):
        reply = (await send(wire, base, {"data": QUERY}))["message"]
        assert reply["role"] == "ROLE_AGENT"
        envelope = reply["parts"][0]["data"]
        assert envelope["performative"] == "INFORM_CAPABILITIES"
        assert envelope["sender"]["agent_id"] == "bench"
        names = {action["name"] for action in envelope["payload"]["capabilities"]["actions"]}
        assert {"greet", "measure"} <= names
        streamed = await ask(wire, base, "SendStreamingMessage", {"message": message({"data": QUERY})})
        (event,) = read_events(streamed.body)
        assert event["message"]["parts"][0]["data"]["performative"] == "INFORM_CAPABILITIES"
    old = (await ask(wire, url, "message/send", {"message": old_message({"data": QUERY})})).result
    assert (old["kind"], old["parts"][0]["kind"]) == ("message", "data")
    malformed = {"performative": "QUERY_CAPABILITIES", "payload": {"query_type": "?"}}
    answered = (await send(wire, url, {"data": malformed}))["message"]["parts"][0]["data"]
    assert answered["performative"] == "NOT_UNDERSTOOD"
    assert (await ask(wire, url, "ListTasks", {})).result["totalSize"] == 0
