"""Push notifications of A2A tasks: where they may go, what they say, and in which order they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from retinue.a2a.codec.tasks import new_task
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.storage.state import State
from retinue.storage.task_store import StoredTask, TaskStore
from retinue.web.disconnect import read_body
from tests.a2a.wire import ask, message, naming
from tests.serving import serve_app
from tests.system import WAIT_S, Wire, open_system


class Receiver:
    """Takes notifications; ``refusals`` are the statuses of its first answers."""

    def __init__(self, *refusals: int) -> None:
        self.got: list[tuple[dict[str, str], Any]] = []
        self._refusals = list(refusals)
        self._news = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await read_body(receive) or b""
        status = self._refusals.pop(0) if self._refusals else 200
        if status == 200:
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.got.append((headers, orjson.loads(body)))
            self._news.set()
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def wait_for(self, count: int) -> list[Any]:
        """The bodies when there are so many."""
        async with asyncio.timeout(WAIT_S):
            while len(self.got) < count:
                self._news.clear()
                await self._news.wait()
        return [body for _, body in self.got]


def make_agent() -> Agent:
    agent = Agent("teller", version="1.0.0")

    @agent.skill
    async def order(ctx: Context) -> str:
        """Asks."""
        return await ctx.elicit("Which name?", str)

    @agent.skill
    async def greet(name: str) -> str:
        """Says hello."""
        return f"hello {name}"

    return agent


@asynccontextmanager
async def serving(home: Path, **a2a: Any) -> AsyncIterator[str]:
    async with open_system(State(home), a2a=a2a) as system:
        yield (await system.start_agent(make_agent())).url


async def test_every_change_arrives_in_order_with_token_and_credentials(tmp_path: Path, wire: Wire) -> None:
    receiver = Receiver()
    async with serve_app(receiver) as target, serving(tmp_path, private_push_urls=True) as url:
        config = {
            "url": target,
            "token": "t-1",
            "authentication": {"scheme": "Bearer", "credentials": "secret"},
        }
        params = {
            "message": message(naming("order")),
            "configuration": {"taskPushNotificationConfig": config},
        }
        task = (await ask(wire, url, "SendMessage", params)).result["task"]
        await ask(wire, url, "SendMessage", {"message": message("Ann", taskId=task["id"])})
        told = await receiver.wait_for(4)
    assert told[0]["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert told[1]["statusUpdate"]["status"]["state"] == "TASK_STATE_WORKING"
    assert told[2]["artifactUpdate"]["artifact"]["parts"] == [{"text": "Ann"}]
    assert told[3]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert {(one["x-a2a-notification-token"], one["authorization"]) for one, _ in receiver.got} == {
        ("t-1", "Bearer secret")
    }


async def test_a_receiver_that_fails_is_asked_again(tmp_path: Path, wire: Wire) -> None:
    receiver = Receiver(503)
    async with serve_app(receiver) as target, serving(tmp_path, private_push_urls=True) as url:
        config = {"taskPushNotificationConfig": {"url": target}}
        params = {"message": message(naming("greet", name="Ben")), "configuration": config}
        await ask(wire, url, "SendMessage", params)
        told = await receiver.wait_for(1)
    assert told[0]["task"]["artifacts"][0]["parts"] == [{"text": "hello Ben"}]


async def test_a_client_of_0_3_is_sent_the_task(tmp_path: Path, wire: Wire) -> None:
    receiver = Receiver()
    async with serve_app(receiver) as target, serving(tmp_path, private_push_urls=True) as url:
        said = {
            "kind": "message",
            "messageId": "m",
            "role": "user",
            "parts": [{"kind": "data", **naming("order")}],
        }
        task = (await ask(wire, url, "message/send", {"message": said})).result
        config = {"url": target, "token": "t", "authentication": {"schemes": ["Bearer"], "credentials": "c"}}
        given = {"taskId": task["id"], "pushNotificationConfig": config}
        kept = (await ask(wire, url, "tasks/pushNotificationConfig/set", given)).result
        assert kept["pushNotificationConfig"] == {**config, "id": task["id"]}
        found = (await ask(wire, url, "tasks/pushNotificationConfig/get", {"id": task["id"]})).result
        assert found == kept
        assert (await ask(wire, url, "tasks/pushNotificationConfig/list", {"id": task["id"]})).result == [
            kept
        ]
        await ask(wire, url, "tasks/cancel", {"id": task["id"]})
        told = await receiver.wait_for(1)
    assert (told[0]["kind"], told[0]["id"], told[0]["status"]["state"]) == ("task", task["id"], "canceled")


async def test_configurations_are_kept_listed_and_deleted(tmp_path: Path, wire: Wire) -> None:
    async with serving(tmp_path) as url:
        task = (await ask(wire, url, "SendMessage", {"message": message(naming("order"))})).result["task"]
        for config_id in ("a", "b"):
            given = {"taskId": task["id"], "id": config_id, "url": "https://example.com/hook"}
            assert (await ask(wire, url, "CreateTaskPushNotificationConfig", given)).result == given
        listed = (await ask(wire, url, "ListTaskPushNotificationConfigs", {"taskId": task["id"]})).result
        assert [one["id"] for one in listed["configs"]] == ["a", "b"]
        one = {"taskId": task["id"], "id": "a"}
        assert (await ask(wire, url, "GetTaskPushNotificationConfig", one)).result["url"].endswith("/hook")
        for _ in range(2):
            assert (await ask(wire, url, "DeleteTaskPushNotificationConfig", one)).result == {}
        assert (await ask(wire, url, "GetTaskPushNotificationConfig", one)).error["code"] == -32001


PRIVATE = (
    "http://127.0.0.1:9/",
    "http://localhost:9/",
    "http://10.0.0.1/x",
    "http://[::1]/",
    "http://192.168.1.1/",
)
NEVER = (
    "http://169.254.169.254/latest",
    "http://[fe80::1]/",
    "http://[::ffff:169.254.169.254]/",
    "ftp://x.org/",
    "x",
)


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_url_of_a_private_network_is_refused_unless_allowed(
    tmp_path: Path, wire: Wire, allowed: bool
) -> None:
    async with serving(tmp_path, private_push_urls=allowed) as url:
        task = (await ask(wire, url, "SendMessage", {"message": message(naming("order"))})).result["task"]
        for refused in (*NEVER, *(() if allowed else PRIVATE)):
            given = {"taskId": task["id"], "url": refused}
            reply = await ask(wire, url, "CreateTaskPushNotificationConfig", given)
            assert (reply.status, reply.error["code"]) == (200, -32602), refused
            assert "refused" in reply.error["message"]
            config = {"taskPushNotificationConfig": {"url": refused}}
            params = {"message": message(naming("greet", name="x")), "configuration": config}
            assert (await ask(wire, url, "SendMessage", params)).error["code"] == -32602
        for private in PRIVATE if allowed else ():
            given = {"taskId": task["id"], "url": private}
            assert "result" in (await ask(wire, url, "CreateTaskPushNotificationConfig", given)).json


async def test_a_task_lost_with_its_process_is_told_when_the_next_one_starts(tmp_path: Path) -> None:
    receiver, state = Receiver(), State(tmp_path)
    state.prepare()
    store = TaskStore.open(state, "teller")
    task = new_task("lost", "c", {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]})
    store.save(StoredTask("lost", "teller", "anonymous", "c", "TASK_STATE_WORKING", False, task))
    async with serve_app(receiver) as target:
        store.save_push("lost", "p", {"url": target})
        store.close()
        async with serving(tmp_path, private_push_urls=True):
            told = await receiver.wait_for(1)
    assert told[0]["task"]["id"] == "lost"
    assert "process" in told[0]["task"]["status"]["message"]["parts"][0]["text"]
