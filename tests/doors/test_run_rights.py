"""Who reaches a run: whoever has every right that it was started with; to all others it is not there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.web.issued_tokens import TokenFile
from tests.doors.office import Office
from tests.requirements import requirement
from tests.system import WAIT_S

PLAIN = {"name": "plain", "steps": [{"id": "plan", "skill": "create_plan", "with": {"requirements": "x"}}]}
ASKING = {"name": "asking", "steps": [{"id": "ok", "wait_for": "go"}]}

SKILLS: dict[str, dict[str, Any]] = {
    "show_run": {},
    "follow_run": {},
    "cancel_run": {},
    "resume_run": {},
    "extend_run": {"limits": {"turns": 30}},
    "rerun_run": {"from_step": "plan"},
    "signal_run": {"topic": "go", "value": True},
}
"""The skills about one run, and what they take beside it."""


def token(office: Office, *scopes: str, agents: tuple[str, ...] = ()) -> dict[str, str]:
    _, text = TokenFile(office.system.state.keys).issue(scopes, agents=agents)
    return {"authorization": f"Bearer {text}"}


def local(office: Office) -> dict[str, str]:
    return {"authorization": office.system.token}


async def list_runs(office: Office, more: Any = None, **headers: str) -> list[str]:
    return [row["run"] for row in (await office.get("list_runs", more or {}, **headers))["runs"]]


async def start_asking(office: Office, run: str, **headers: str) -> None:
    """A run that waits for a signal."""
    await office.get("start_run", {"workflow": ASKING, "run": run}, **headers)
    async with asyncio.timeout(WAIT_S):
        after, kinds = 0, set()
        while ("step_started", "ok") not in kinds:
            reply = await office.get("follow_run", {"run": run, "after": after}, **headers)
            after, kinds = reply["next"], {(one["event"], one["step"]) for one in reply["events"]}


@requirement("S-17")
@pytest.mark.parametrize("skill", ["list_runs", *SKILLS])
async def test_whoever_is_limited_to_some_agents_reaches_no_run(office: Office, skill: str) -> None:
    """Not even one that it could have seen all of, and whether or not there is such a run."""
    limited = token(office, "mesh", "runs_code", agents=("bench-*", "retinue"))
    await office.get("orchestrate_workflow", {"workflow": PLAIN, "input": {}, "run": "r"})
    for run in ("r", "never"):
        arguments = {"run": run, **SKILLS[skill]} if skill in SKILLS else {}
        reply = await office.ask(skill, arguments, **limited)
        assert "runs no workflows" in reply.error["message"]
        assert reply.error["data"]["type"] == "not_allowed"


@pytest.mark.parametrize("skill", SKILLS)
async def test_a_run_with_more_rights_answers_as_one_that_is_not_there(office: Office, skill: str) -> None:
    """That of the command line may run code, and so would whatever lets it go on."""
    await start_asking(office, "ours", **local(office))
    for caller in ({}, token(office, "mesh")):
        hidden = await office.ask(skill, {"run": "ours", **SKILLS[skill]}, **caller)
        missing = await office.ask(skill, {"run": "mine", **SKILLS[skill]}, **caller)
        assert hidden.error["data"]["type"] == "unknown_run"
        assert hidden.body == missing.body.replace(b"mine", b"ours")
    shown = await office.get("show_run", {"run": "ours"}, **local(office))
    assert (shown["status"], shown["steps"][0]["status"]) == ("running", "waiting")
    await office.get("signal_run", {"run": "ours", "topic": "go", "value": 1}, **local(office))
    assert (await office.follow("ours", authorization=office.system.token))["output"] == 1


async def test_a_list_holds_the_runs_that_its_reader_reaches_and_counts_only_those(office: Office) -> None:
    for number in range(3):
        for run, headers in ((f"theirs-{number}", {}), (f"ours-{number}", local(office))):
            arguments = {"workflow": PLAIN, "input": {}, "run": run}
            await office.get("orchestrate_workflow", arguments, **headers)
    assert await list_runs(office) == ["theirs-2", "theirs-1", "theirs-0"]
    assert await list_runs(office, {"limit": 2}, **token(office, "mesh")) == ["theirs-2", "theirs-1"]
    assert len(await list_runs(office, **local(office))) == 6


async def test_who_starts_a_run_reaches_it_and_so_does_whoever_has_more_rights(office: Office) -> None:
    """With the scope ``mesh`` alone as well, which sees what is exposed."""
    mesh = token(office, "mesh")
    for run, workflow in (("inline", PLAIN), ("stored", "direct")):
        given = {"prompt": "x"} if workflow == "direct" else {}
        await office.get("start_run", {"workflow": workflow, "input": given, "run": run}, **mesh)
        for reader in (mesh, {}, token(office, "mesh", "runs_code"), local(office)):
            assert (await office.get("show_run", {"run": run}, **reader))["run"] == run


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    """A result without how long it took."""
    return {key: value for key, value in result.items() if key not in ("duration", "metadata")}


@pytest.mark.parametrize("way", ["orchestrate_workflow", "start_run"])
@pytest.mark.parametrize("other", [{}, {"prompt": "other"}], ids=["the same request", "another request"])
async def test_the_id_of_a_run_with_more_rights_is_free_to_all_others(
    office: Office, way: str, other: dict[str, str]
) -> None:
    """Nobody learns that it is taken, gets its output, or takes it in advance."""
    plain = {**PLAIN, "input": {}}
    arguments = {"workflow": plain, "input": {}, "run": "key"}
    ours = await office.get("orchestrate_workflow", arguments, **local(office))
    callers: list[dict[str, str]] = [{}, token(office, "exposed")] if "orch" in way else [{}]
    for count, caller in enumerate(callers, 2):
        reply = await office.ask(way, {**arguments, "input": other}, **caller)
        again = await office.ask(way, {**arguments, "input": other}, **caller)
        if caller:
            assert "create_plan" in reply.error["message"], "its own run, in which it sees no such skill"
            assert "key" not in reply.error["message"]
            continue
        assert timeless(reply.result) == timeless(again.result)
        assert reply.result["run"] == "key"
        assert (await office.follow("key"))["status"] == "done"
        assert (await office.get("show_run", {"run": "key"}))["input"] == other
        assert len(office.bench.ran) == count
        taken = await office.ask(way, {**arguments, "input": {"n": 1}}, **caller)
        assert taken.error["data"]["type"] == "run_conflict"
        assert "~" not in taken.error["message"]
    again = await office.get("orchestrate_workflow", arguments, **local(office))
    assert timeless(again) == timeless(ours)
    assert (await office.get("show_run", {"run": "key"}, **local(office)))["input"] == {}


async def test_ids_in_answers_are_those_that_their_reader_chose(office: Office) -> None:
    """Whoever has more rights sees whose the run is, and may name it with or without that."""
    await start_asking(office, "mine")
    assert await list_runs(office) == ["mine"]
    assert await list_runs(office, **token(office, "mesh")) == ["mine"]
    assert await list_runs(office, **local(office)) == ["mine~mesh"]
    for run in ("mine", "mine~mesh"):
        shown = await office.get("show_run", {"run": run}, **local(office))
        assert shown["run"] == run
    assert (await office.get("signal_run", {"run": "mine", "topic": "go", "value": 1}))["run"] == "mine"
    assert (await office.follow("mine"))["output"] == 1
    again = {"run": "mine", "from_step": "ok", "new_run": "again"}
    assert (await office.get("rerun_run", again))["run"] == "again"
    taken = await office.ask("rerun_run", again)
    assert taken.error["data"]["type"] == "run_conflict"
    assert (await office.get("show_run", {"run": "again"}))["forked_from"] == "mine"
    assert (await office.get("cancel_run", {"run": "again"}))["run"] == "again"
    assert (await office.get("resume_run", {"run": "again"}))["run"] == "again"
    await office.get("cancel_run", {"run": "again"})


@pytest.mark.parametrize("new", ["free", "ours"])
async def test_a_rerun_does_not_tell_which_ids_are_taken(office: Office, new: str) -> None:
    plain = {"workflow": PLAIN, "input": {}}
    await office.get("orchestrate_workflow", {**plain, "run": "ours"}, **local(office))
    await office.get("orchestrate_workflow", {**plain, "run": "mine"})
    reply = await office.get("rerun_run", {"run": "mine", "from_step": "plan", "new_run": new})
    assert reply == {"run": new, "workflow": "plain", "from": "mine"}
    assert (await office.follow(new))["status"] == "done"


async def test_with_the_scope_of_clients_nobody_sees_the_skills_about_runs(office: Office) -> None:
    exposed = token(office, "exposed")
    for skill, more in SKILLS.items():
        for way, arguments in (
            (skill, {"run": "r", **more}),
            ("call_skill", {"skill": skill, "arguments": {"run": "r", **more}}),
        ):
            reply = await office.ask(way, arguments, **exposed)
            assert reply.error["data"]["type"] in ("skill_not_offered", "unknown_skill")
