"""Names of strangers that resolve to another address when they are asked than when they were given."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from tests.processes.names import Names
from tests.processes.recorder import Recorder, recorder
from tests.processes.running import Program, program, wait_until
from tests.processes.test_a2a_tasks_process import ask
from tests.processes.test_message_tasks_process import say

PUBLIC = "93.184.216.34"
AGENT = '''
import asyncio
from retinue import Agent, Context

agent = Agent("slow-agent", version="1.0.0")
go = asyncio.Event()


@agent.skill
async def work() -> str:
    """Works until it is let go on."""
    await go.wait()
    return "done"


@agent.skill
async def finish() -> str:
    """Lets the work go on."""
    go.set()
    return "finished"


@agent.skill
async def order(ctx: Context) -> str:
    """Asks."""
    return await ctx.elicit("Which name?", str)
'''
WORK = {"task_type": "work"}
PRIVATE_ALLOWED = {"RETINUE_MESSAGES__PRIVATE_CALLBACKS": "true", "RETINUE_A2A__PRIVATE_PUSH_URLS": "true"}


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path)


@pytest.fixture
def stranger() -> Iterator[Recorder]:
    with recorder() as server:
        yield server


@pytest.fixture
def serve(tmp_path: Path, names: Names) -> Iterator[Any]:
    """Starts the agent in a process, and a hub before it if asked."""
    (tmp_path / "agent.py").write_text(AGENT)
    with ExitStack() as stack:

        def start(*, hub: bool = False, **environment: str) -> tuple[Program, str, Program | None, str]:
            known = {**names.environment, **environment}
            running = None
            if hub:
                running = stack.enter_context(
                    program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=known)
                )
            base = "" if running is None else running.url_in("hub at")
            arguments = () if hub else ("--no-publish",)
            served = stack.enter_context(
                program("serve", "agent.py", *arguments, cwd=tmp_path, environment=known)
            )
            url = served.url_in("slow-agent 1.0.0 at")
            if running is not None:
                served.wait_for("published")
            return served, url, running, base

        yield start


def change(names: Names, addresses: dict[str, str], *urls: str) -> None:
    """Let names resolve to other addresses, and wait until the processes at the urls know."""
    names.set(changed_example=PUBLIC, **addresses)
    hook, to = "http://changed.example/x", {"agent_id": "slow-agent"}
    for url in urls:

        def knows(url: str = url) -> bool:
            told = say(url, "SUBSCRIBE", {"topic": "capabilities"}, callback_url=hook, receiver=to)
            return bool(told["performative"] == "TASK_ACCEPT")

        wait_until(knows, "the process reads the names again")


def begin_task(url: str, hook: str, **more: Any) -> None:
    """A hub may hear of its agent a moment after the agent has published."""

    def accepts() -> bool:
        reply = say(url, "TASK_REQUEST", WORK, callback_url=hook, **more)
        return bool(reply["performative"] == "TASK_ACCEPT")

    wait_until(accepts, "the task is accepted")


def begin_push(url: str, hook: str) -> str:
    """The id of an A2A task that waits for an answer and tells it to ``hook``."""
    part = {"data": {"skill": "order", "arguments": {}}}
    message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [part]}
    task = ask(url, "SendMessage", {"message": message})["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    given = {"taskId": task["id"], "id": "p", "url": hook}
    assert "result" in ask(url, "CreateTaskPushNotificationConfig", given)
    return str(task["id"])


def end_push(url: str, task_id: str) -> None:
    message = {
        "messageId": str(uuid.uuid4()),
        "role": "ROLE_USER",
        "parts": [{"text": "Ann"}],
        "taskId": task_id,
    }
    ask(url, "SendMessage", {"message": {**message, "taskId": task_id}})


def finish(url: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "finish", "params": {}}
    reply = urllib3.request("POST", f"{url}/execute", json=body, timeout=120.0)
    assert reply.json()["result"] == "finished"


def reasons(running: Program, event: str) -> list[str]:
    """Why deliveries failed, as the log of a process says."""
    lines = [orjson.loads(line) for line in list(running.lines) if event in line]
    return [str(line.get("problem") or line.get("reason")) for line in lines]


def wait_for_reasons(running: Program, event: str, count: int) -> list[str]:
    wait_until(lambda: len(reasons(running, event)) >= count, f"{count} × {event}", limit_s=180)
    return reasons(running, event)


@pytest.mark.timeout(600)
def test_a_callback_whose_name_becomes_private_is_not_asked(
    serve: Any, names: Names, stranger: Recorder
) -> None:
    hooks = {
        f"{name}.example": address
        for name, address in (
            ("loopback", "127.0.0.1"),
            ("network", "10.1.2.3"),
            ("metadata", "169.254.169.254"),
            ("mapped", "::ffff:127.0.0.1"),
        )
    }
    for name in hooks:
        names.set(**{name: PUBLIC})
    served, url, hub, base = serve(hub=True)
    assert hub is not None
    for name in hooks:
        hook = f"http://{name}:{stranger.port}/inbox"
        begin_task(url, hook)
        begin_task(base, hook, receiver={"agent_id": "slow-agent"})
        say(url, "SUBSCRIBE", {"topic": "capabilities"}, callback_url=hook, message_id=f"s-{name}")
    change(names, hooks, url, base)
    finish(url)
    for running in (served, hub):
        problems = wait_for_reasons(running, "message not delivered", len(hooks))
        assert all("it has no public address" in one for one in problems), problems
    # a new one is refused at once
    refused = say(url, "TASK_REQUEST", WORK, callback_url=f"http://loopback.example:{stranger.port}/inbox")
    assert "callback_url is refused" in refused["payload"]["reason_text"]
    assert stranger.connections == 0


@pytest.mark.timeout(600)
def test_a_callback_of_a_task_that_was_lost_is_checked_by_the_next_process_too(
    serve: Any, names: Names, stranger: Recorder
) -> None:
    names.set(lost_example=PUBLIC)
    hook = f"http://lost.example:{stranger.port}/inbox"
    served, url, _, _ = serve()
    begin_task(url, hook)
    served.end(signal.SIGKILL)
    names.set(lost_example="127.0.0.1")
    served, url, _, _ = serve()
    (problem,) = wait_for_reasons(served, "message not delivered", 1)
    assert "it has no public address" in problem
    assert stranger.connections == 0


@pytest.mark.timeout(600)
def test_a_push_url_whose_name_becomes_private_is_not_asked(
    serve: Any, names: Names, stranger: Recorder
) -> None:
    hooks = {"loopback.example": "127.0.0.1", "metadata.example": "169.254.169.254"}
    for name in hooks:
        names.set(**{name: PUBLIC})
    served, url, hub, base = serve(hub=True)
    assert hub is not None
    places = (url, f"{base}/agents/slow-agent")
    tasks = [
        (place, begin_push(place, f"http://{name}:{stranger.port}/push"))
        for place in places
        for name in hooks
    ]
    change(names, hooks, url, base)
    for place, task_id in tasks:
        end_push(place, task_id)
    for running in (served, hub):
        problems = wait_for_reasons(running, "push notification failed", len(hooks))
        assert all("it has no public address" in one for one in problems), problems
    assert stranger.connections == 0


@pytest.mark.timeout(600)
def test_where_private_urls_are_allowed_they_are_asked_but_metadata_services_never(
    serve: Any, names: Names, stranger: Recorder
) -> None:
    """Without this, the tests above could pass because nothing is ever sent."""
    with recorder() as elsewhere:
        stranger.answer = lambda method, path: (
            (307, {"location": f"{elsewhere.url}/inbox"}, b"") if path == "/moved" else None
        )
        names.set(loopback_example=PUBLIC, metadata_example=PUBLIC)
        served, url, _, _ = serve(**PRIVATE_ALLOWED)
        begin_task(url, f"http://loopback.example:{stranger.port}/inbox")
        begin_task(url, f"http://loopback.example:{stranger.port}/moved")
        begin_task(url, f"http://metadata.example:{stranger.port}/inbox")
        loopback = begin_push(url, f"http://loopback.example:{stranger.port}/push")
        moved = begin_push(url, f"http://loopback.example:{stranger.port}/moved")
        metadata = begin_push(url, f"http://metadata.example:{stranger.port}/push")
        change(names, {"loopback.example": "127.0.0.1", "metadata.example": "169.254.169.254"}, url)
        finish(url)
        for task_id in (loopback, moved, metadata):
            end_push(url, task_id)
        for path in (b"POST /inbox", b"POST /push", b"POST /moved"):
            stranger.wait_for(path)
        (told,) = wait_for_reasons(served, "message not delivered", 1)
        assert "never asked" in told
        (pushed,) = wait_for_reasons(served, "push notification failed", 1)
        assert "never asked" in pushed
        assert b"metadata.example" not in stranger.received
        assert elsewhere.connections == 0
