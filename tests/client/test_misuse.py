"""A program that uses a connection wrongly gets an error with a remedy, and no traceback of the inside."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import pytest

import retinue
from retinue import Agent, Context
from retinue.client.mesh_connection import MeshConnection
from retinue.client.sync_connection import LoopThread
from retinue.core.errors import (
    InputRequiredError,
    InvalidParametersError,
    InvalidRequestError,
    InvalidSettingError,
    RetinueError,
)
from retinue.testing import connect_agents
from tests.client.scripted_hub import ScriptedHub
from tests.serving import serve_app
from tests.system import System


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": 9000}, "url: int is not a text"),
        ({"token": b"x"}, "token: bytes is not a text"),
        ({"token": "x\ny"}, "token: it has a line break"),
        ({"timeout_s": "5"}, "timeout_s: '5' is not a number above 0"),
        ({"timeout_s": float("nan")}, "timeout_s: nan is not a number above 0"),
        ({"retries": -1}, "retries: -1 is not a whole number from 0"),
        ({"on_question": "yes"}, "on_question: str is not a function"),
    ],
)
def test_an_option_of_another_form_is_refused_before_anything_is_sent(
    options: dict[str, Any], message: str
) -> None:
    for connect in (retinue.connect, retinue.connect_sync):
        with pytest.raises(InvalidSettingError, match=message) as refused:
            connect(**options)
        assert refused.value.remedy


async def test_an_argument_of_another_form_is_named_before_anything_is_sent() -> None:
    hub = ScriptedHub(work=lambda params: 1)
    text: Any = "greet"
    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        wrong: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "timeout_s": lambda value: mesh.call("work", {}, timeout_s=value),
            "key": lambda value: mesh.call("work", {}, key=value),
            "agent": lambda value: mesh.call("work", {}, agent=value),
            "skill": mesh.call,
        }
        for name, use in wrong.items():
            with pytest.raises(InvalidParametersError) as refused:
                await use(b"5")
            assert refused.value.problems[0].path == name
        # the letters of a text are a list, too, and nobody offers them
        with pytest.raises(InvalidParametersError, match="capabilities"):
            await mesh.ask_agents(text)
        with pytest.raises(InvalidParametersError, match="agents"):
            await mesh.ask_agents(["greet"], agents=text)
        number: Any = 5
        with pytest.raises(InvalidParametersError, match="timeout_s is '5'"):
            await mesh.orchestrate("write", timeout_s="5")  # type: ignore[arg-type]
        with pytest.raises(InvalidParametersError, match="artifact is a int"):
            await mesh.publish(number)
        with pytest.raises(InvalidRequestError, match="the content is a int"):
            await mesh.save(number)
    assert not hub.connections


@dataclass
class Point:
    x: float


UNSENDABLE: list[tuple[Any, str, str]] = [
    ({"ratio": nan}, "ratio", "ratio is nan"),
    ({"none": None, "points": [{"x": 1.0}, {"x": -inf}]}, "points.1.x", "points.1.x is -inf"),
    ({"point": Point(inf)}, "point.x", "point.x is inf"),
    ({"names": {"b"}}, "names", "names is a set"),
    ({"many": 2**64}, "many", "many is an integer beyond 64 bits"),
    ({"by_id": {1: "a"}}, "by_id", "the key 1: JSON has texts as keys"),
    ({"text": "\ud800"}, "text", "half of a surrogate pair"),
]


@pytest.mark.parametrize(("arguments", "path", "message"), UNSENDABLE)
async def test_an_argument_that_json_does_not_have_is_named_before_it_is_sent(
    arguments: Any, path: str, message: str
) -> None:
    def reject(question: Any) -> None:
        raise AssertionError(question)

    hub = ScriptedHub(work=lambda params: params, start_run=lambda params: {})
    async with serve_app(hub) as url, retinue.connect(url) as mesh, connect_agents() as memory:
        asking = retinue.connect(url, on_question=reject)
        for use in (mesh.call, memory.call, asking.call):
            with pytest.raises(InvalidParametersError, match=re.escape(message)) as refused:
                await use("work", arguments)
            assert [problem.path for problem in refused.value.problems] == [path]
        with pytest.raises(InvalidParametersError, match=re.escape(f"input.{path}")):
            await mesh.start("flow", arguments)
        await asking.aclose()
    assert not hub.connections


async def test_a_closed_connection_is_not_opened_again() -> None:
    hub = ScriptedHub(work=lambda params: 1)
    async with serve_app(hub) as url:
        async with retinue.connect(url) as mesh:
            assert await mesh.call("work") == 1
        with pytest.raises(InvalidRequestError, match="is closed") as closed:
            await mesh.call("work")
        assert "connect()" in closed.value.remedy
        await mesh.aclose()


async def test_a_connection_of_another_event_loop_is_refused() -> None:
    hub = ScriptedHub(work=lambda params: 1)

    async def use(mesh: MeshConnection) -> None:
        with pytest.raises(InvalidRequestError, match="another event loop") as refused:
            await mesh.call("work")
        assert "connect_sync()" in refused.value.remedy
        with pytest.raises(InvalidRequestError, match="another event loop"):
            await mesh.aclose()

    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        assert await mesh.call("work") == 1
        thread = LoopThread()
        await asyncio.to_thread(thread.run, use(mesh))
        await asyncio.to_thread(thread.close)
        assert await mesh.call("work") == 1


async def test_another_program_in_place_of_a_hub_is_named_by_its_url() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"<h1>Not found</h1>"})

    async with serve_app(app) as url, retinue.connect(url) as mesh:
        for use in (lambda: mesh.call("work"), mesh.find):
            with pytest.raises(RetinueError, match=f"the program at {url} is no hub: it answered 404") as met:
                await use()
            assert "check hub" in met.value.remedy


def test_a_connection_of_the_process_before_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = retinue.connect_sync("http://127.0.0.1:1")
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(InvalidRequestError, match="forked") as refused:
        mesh.agents()
    assert "in each process" in refused.value.remedy
    mesh.close()


async def test_a_question_without_a_handler_names_the_option(system: System) -> None:
    agent = Agent("asking-agent")

    @agent.skill
    async def greet(ctx: Context) -> str:
        """Greets a person."""
        return f"Hello, {await ctx.elicit('Who are you?', str)}"

    await system.start_agent(agent)
    await system.start_hub()
    async with retinue.connect() as mesh:
        with pytest.raises(InputRequiredError, match="Who are you") as asked:
            await mesh.call("greet")
        assert "on_question" in asked.value.remedy
        # errors of the hub have their own class, not that of an agent's fault
        with pytest.raises(InvalidSettingError, match="no range of versions"):
            await mesh.call("greet", version="abc")
        run = await mesh.start({"name": "ended", "steps": [{"id": "a", "wait_for": {"topic": "go"}}]})
        await run.cancel()
        with pytest.raises(InvalidRequestError, match="has ended"):
            await run.signal("go", 1)
