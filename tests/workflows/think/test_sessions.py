"""A step think with a session begins with what was said in it before."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue import LimitedError
from retinue.core.call import TraceContext
from retinue.core.errors import ModelError
from retinue.testing import run_workflow
from retinue.testing.memory_runs import MemorySessions
from retinue.thinking.completion import CompletionRequest
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.sessions import SessionTable
from retinue.workflows.runs.ports import Change
from retinue.workflows.runs.records import Origin
from tests.requirements import requirement
from tests.support.thinking import ScriptedModel, say, think, use
from tests.workflows.implementations import make_database
from tests.workflows.running import Bench
from tests.workflows.think.scripts import add_model


def texts_of(request: CompletionRequest) -> list[str]:
    """The texts of a conversation, in order."""
    texts = []
    for message in request.messages:
        fields = message.to_json()
        texts += [part["text"] for part in fields.get("content", ())]
        texts += [fields["reply"]["text"]] if "reply" in fields else []
    return texts


@requirement("T-16")
async def test_a_run_begins_with_what_was_said_in_its_session() -> None:
    sessions = MemorySessions()

    async def ask(prompt: str, session: str | None, **options: Any) -> list[str]:
        model = ScriptedModel(*[say(f"answer to {prompt}")] * 9)
        flow = think(prompt, tools=[], session="${{ input.session }}", **options)
        run = await run_workflow(
            flow, {"session": session}, agents=[model.agent], sessions=sessions, crash_at_every_step=True
        )
        assert run.get() == f"answer to {prompt}"
        return texts_of(model.requests[-1])

    assert await ask("one", "s") == ["one"]
    assert await ask("two", "s") == ["one", "answer to one", "two"]
    assert await ask("three", "other") == ["three"]
    assert await ask("four", "") == ["four"]
    assert await ask("four", None) == ["four"]
    assert await ask("five", "s") == ["one", "answer to one", "two", "answer to two", "five"]


@requirement("T-16")
async def test_each_caller_has_its_own_session(bench: Bench) -> None:
    requests = add_model(bench, *[say("noted")] * 9)
    flow = dict(think(tools=[], session="s"))
    trace = TraceContext("t")
    ann = Origin(caller="ann", trace=trace)
    for origin in (ann, replace(ann, caller="bob"), replace(ann, scopes=frozenset({"mesh"}))):
        assert (await bench.run(flow, origin=origin)).get() == "noted"
    assert [len(request.messages) for request in requests] == [1, 1, 1]
    assert (await bench.run(flow, origin=ann)).get() == "noted"
    assert len(requests[-1].messages) == 3


@requirement("T-16")
async def test_a_last_answer_at_a_limit_is_remembered_and_a_failure_is_not() -> None:
    sessions = MemorySessions()
    limited = ScriptedModel(*[use(("no", {"n": n})) for n in range(3)])
    flow = think(tools=[], session="s", limits={"turns": 2})
    run = await run_workflow(flow, agents=[limited.agent], sessions=sessions)
    with pytest.raises(LimitedError):
        run.get()
    broken = ScriptedModel(*[ModelError("thinker", "refused", "no")] * 9)
    run = await run_workflow(flow, agents=[broken.agent], sessions=sessions)
    assert run.status == "failed"
    model = ScriptedModel(*[say("ok")] * 9)
    await run_workflow(flow, agents=[model.agent], sessions=sessions)
    assert texts_of(model.requests[0]) == ["Do it", "as far as I came", "Do it"]


async def test_the_table_of_sessions_changes_one_after_the_other_and_forgets_with_the_last_run(
    tmp_path: Path,
) -> None:
    shutil.copy(await make_database(), tmp_path / "runs.db")
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
    table = SessionTable(database)

    def add(number: int) -> Change:
        return lambda stored: {"n": [*(stored or {"n": []})["n"], number]}

    await asyncio.gather(*(table.change("a", f"r{number}", add(number)) for number in range(8)))
    await table.change("a", "last", add(9))
    await table.change("b", "r1", add(1))
    history = await table.find("a")
    assert history is not None
    assert sorted(history["n"]) == [*range(8), 9]
    await table.forget(["r1"])
    assert (await table.find("a"), await table.find("b")) == (history, None)
    await table.forget(["last"])
    assert await table.find("a") is None
    database.close()
