"""A program hears of a call while it runs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest

import retinue
from retinue import Agent, Context
from retinue.client.updates import CallUpdate
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    ExecutionFailedError,
    InvalidParametersError,
    NotAuthenticatedError,
    SkillNotOfferedError,
)
from tests.client.hubs import use_expired_token
from tests.client.scripted_hub import ScriptedHub
from tests.ports import reserved_port
from tests.serving import serve_app
from tests.system import WAIT_S, System


def telling_agent() -> Agent:
    agent = Agent("telling-agent", logging=True)
    agent.ended = asyncio.Event()  # type: ignore[attr-defined]

    @agent.skill
    async def review(code: str, ctx: Context) -> str:
        await ctx.progress(0.5, "reading")
        await ctx.log("a line", level="warning", data={"lines": 3})
        await ctx.progress(None, "thinking")
        return f"{code}: good"

    @agent.skill
    async def fail(ctx: Context) -> None:
        await ctx.progress(0.1, "begun")
        raise ValueError("no")

    @agent.skill
    async def wait(ctx: Context) -> None:
        await ctx.progress(0.1, "begun")
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            agent.ended.set()  # type: ignore[attr-defined]

    @agent.skill
    async def ask(ctx: Context) -> str:
        await ctx.progress(0.1, "asking")
        return f"Hello, {await ctx.elicit('Who are you?', str)}"

    return agent


async def list_updates(updates: Any) -> list[CallUpdate]:
    return [update async for update in updates]


async def test_progress_and_log_lines_come_first_and_the_outcome_last(system: System) -> None:
    await system.start_agent(telling_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        *reports, last = await list_updates(mesh.stream("review", code="x = 1"))
    assert [(one.kind, one.text, one.fraction) for one in reports] == [
        ("progress", "reading", 0.5),
        ("log", "a line", None),
        ("progress", "thinking", pytest.approx(0.5, abs=1e-3)),  # MCP has no unknown fraction
    ]
    assert (reports[1].level, reports[1].data["lines"]) == ("warning", 3)
    assert last.kind == "outcome"
    assert last.outcome is not None
    assert last.outcome.get() == "x = 1: good"


async def test_a_failure_is_data_of_the_last_update(system: System) -> None:
    await system.start_agent(telling_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        updates = await list_updates(mesh.stream("fail"))
        assert [one.kind for one in updates] == ["progress", "outcome"]
        outcome = updates[-1].outcome
        assert outcome is not None
        with pytest.raises(ExecutionFailedError, match="no"):
            outcome.get()
        (only,) = await list_updates(mesh.stream("nothing"))
        assert only.outcome is not None
        assert isinstance(only.outcome.error, SkillNotOfferedError)
        with pytest.raises(InvalidParametersError):
            await list_updates(mesh.stream("review", {"code": ""}, code=""))


async def test_a_stream_that_is_left_cancels_its_call(system: System) -> None:
    agent = telling_agent()
    await system.start_agent(agent)
    await system.start_hub()
    async with retinue.connect() as mesh:
        async with aclosing(mesh.stream("wait")) as updates:
            async for update in updates:
                assert update.text == "begun"
                break
        async with asyncio.timeout(WAIT_S):
            await agent.ended.wait()  # type: ignore[attr-defined]


async def test_a_stream_has_a_time_limit(system: System) -> None:
    await system.start_agent(telling_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        *_, last = await list_updates(mesh.stream("wait", timeout_s=0.5))
    assert last.outcome is not None
    assert isinstance(last.outcome.error, CallTimedOutError)


async def test_a_question_within_a_stream_is_answered(system: System) -> None:
    await system.start_agent(telling_agent())
    await system.start_hub()
    async with retinue.connect(on_question=lambda question: "Ada") as mesh:
        updates = await list_updates(mesh.stream("ask"))
    assert updates[-1].outcome is not None
    assert updates[-1].outcome.get() == "Hello, Ada"


async def cut_off(scope: Any, receive: Any, send: Any) -> None:
    """A hub that ends after the first report of a stream."""
    if scope["type"] == "http":
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        params = {"progressToken": 1, "progress": 0.5, "message": "half"}
        report = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        await send({"type": "http.response.body", "body": b"data: " + report + b"\n\n", "more_body": True})
        raise ConnectionResetError
    for _ in range(2):
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})


async def test_a_hub_that_ends_within_a_stream_is_unreachable() -> None:
    async with serve_app(cut_off) as url, retinue.connect(url) as mesh:
        *reports, last = await list_updates(mesh.stream("wait"))
    assert [one.text for one in reports] == ["half"]
    assert last.outcome is not None
    assert isinstance(last.outcome.error, AgentUnreachableError)
    assert last.outcome.error.sent
    assert url in last.text


async def test_after_a_restart_of_the_hub_the_next_stream_is_whole(system: System) -> None:
    await system.start_agent(telling_agent())
    with reserved_port() as port:
        async with retinue.connect(f"http://127.0.0.1:{port}") as mesh:
            async with serve_app(cut_off, port=port):
                *_, last = await list_updates(mesh.stream("review", code="x"))
                assert last.outcome is not None
                assert isinstance(last.outcome.error, AgentUnreachableError)
            await system.start_hub(port=port)
            *reports, last = await list_updates(mesh.stream("review", code="x"))
    assert [one.text for one in reports] == ["reading", "a line", "thinking"]
    assert last.outcome is not None
    assert last.outcome.get() == "x: good"


async def test_a_stream_with_an_expired_token_says_so_and_the_next_takes_the_new_one(
    system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = await system.start_hub()
    await system.start_agent(telling_agent())
    valid = use_expired_token(system, tmp_path, monkeypatch)
    async with retinue.connect(hub.url) as mesh:
        (refused,) = await list_updates(mesh.stream("review", code="x"))
        assert refused.outcome is not None
        assert isinstance(refused.outcome.error, NotAuthenticatedError)
        assert "rejects the token" in refused.text
        monkeypatch.setenv("RETINUE_TOKEN", valid)
        *_, last = await list_updates(mesh.stream("review", code="x"))
        assert last.outcome is not None
        assert last.outcome.get() == "x: good"


async def test_a_hub_without_streams_gives_the_outcome_alone() -> None:
    hub = ScriptedHub(work=lambda params: 7)

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] != "/execute":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await hub(scope, receive, send)

    async with serve_app(plain) as url, retinue.connect(url) as mesh:
        (only,) = await list_updates(mesh.stream("work"))
    assert only.outcome is not None
    assert only.outcome.get() == 7
