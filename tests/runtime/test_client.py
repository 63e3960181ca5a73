"""What a person reads while a run goes on: every failure once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from retinue.client.mesh_client import MeshClient
from retinue.core.call import Call, Outcome
from retinue.core.errors import AgentUnreachableError, RetinueError, StepFailedError, StoppingError
from retinue.runtime.commands.client import RunFollower

CAUSE = {"message": "no module x", "remedy": "name one", "type": "execution_error"}


def _event(event: str, step: str, error: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"kind": "call", "event": event, "step": step, "skill": "s", "agent": "a", "error": error}


class Hub:
    """Answers each look at the run with the next reply."""

    def __init__(self, *replies: Mapping[str, Any]) -> None:
        self._replies = list(replies)

    async def dispatch(self, call: Call, channel: Any = None) -> Outcome:
        value = {} if call.skill == "start_run" else {"next": 0, "done": False, **self._replies.pop(0)}
        return Outcome(call.id, call.skill, "done", value=value)


async def _follow(*replies: Mapping[str, Any]) -> tuple[Any, list[str]]:
    output, said, _ = await _follow_closely(*replies)
    return output, said


async def _follow_closely(*replies: Mapping[str, Any]) -> tuple[Any, list[str], list[str]]:
    said: list[str] = []
    began: list[str] = []
    follower = RunFollower(MeshClient(Hub(*replies), None), said.append, began.append)
    try:
        output: Any = await follower.run("w", {})
    except StepFailedError as error:
        output = error
    return output, [" ".join(line.split()) for line in said], began


@pytest.mark.parametrize("together", [True, False])
async def test_the_failure_that_ends_a_run_is_told_by_its_error_alone(together: bool) -> None:
    events = [_event("step_started", "plan"), _event("step_finished", "plan", CAUSE)]
    end = {
        "done": True,
        "status": "failed",
        "error": {"type": "step_failed", "data": {"step": "plan", "agent": "a", "cause": CAUSE}},
    }
    replies = [{"events": events, **end}] if together else [{"events": events}, {"events": [], **end}]
    error, said = await _follow(*replies)
    assert said == ["plan s a failed"]
    assert (str(error), error.remedy) == ("step plan (agent a) failed: no module x", "name one")


async def test_a_failure_that_a_run_survives_is_told_in_its_place() -> None:
    output, said = await _follow(
        {"events": [_event("step_finished", "one", CAUSE)]},
        {"events": [_event("step_finished", "two")]},
        {"events": [_event("step_finished", "three", CAUSE)], "done": True, "status": "done", "output": 7},
    )
    assert output == 7
    assert said == ["one s a failed: no module x", "two s a 0.0 s", "three s a failed: no module x"]


async def test_a_step_is_one_line_when_it_ends_and_a_word_when_it_begins() -> None:
    events = [_event("step_started", "one"), _event("step_finished", "one")]
    output, said, began = await _follow_closely(
        {"events": events, "done": True, "status": "done", "output": 7}
    )
    assert (output, said, began) == (7, ["one s a 0.0 s"], ["one: s at a"])


@pytest.mark.parametrize(
    "error",
    [StoppingError(), AgentUnreachableError("hub", "http://hub", "it was stopping", sent=True)],
    ids=["refuses", "cuts off"],
)
async def test_a_hub_that_stops_is_unreachable_and_its_run_stored(error: RetinueError) -> None:
    class StoppingHub:
        async def dispatch(self, call: Call, channel: Any = None) -> Outcome:
            return Outcome(call.id, call.skill, "refused", error=error)

    said: list[str] = []
    follower = RunFollower(MeshClient(StoppingHub(), "http://hub"), said.append)
    with pytest.raises(AgentUnreachableError) as raised:
        await follower.follow("mine")
    assert raised.value.message == "the hub at http://hub is unreachable: it was stopping"
    assert said == ["run mine is stored; the next hub or worker resumes it"]


async def test_the_end_of_a_text_that_a_step_writes_is_shown_while_it_is_written() -> None:
    shown: list[str] = []
    asked: list[Any] = []

    class Noting(Hub):
        async def dispatch(self, call: Call, channel: Any = None) -> Outcome:
            asked.append(call.arguments)
            return await super().dispatch(call, channel)

    hub = Noting(
        {"events": [], "progress": [{"step": "plan", "text": "One, ", "at": 0}], "next_progress": 7},
        {
            "events": [],
            "progress": [
                {"step": "plan", "text": "two", "at": 5},
                {"step": "plan", "fraction": 0.5, "message": "half"},
                {"step": "plan", "text": "x" * 100, "at": 0},
            ],
            "next_progress": 9,
        },
        {"events": [], "progress": [], "next_progress": 9, "done": True, "status": "done", "output": 7},
    )
    follower = RunFollower(MeshClient(hub, None), lambda line: None, shown.append, shows_reports=True)
    assert await follower.run("w", {}) == 7
    assert shown == ["plan: One, ", "plan: One, two", "plan: 50% half", f"plan: {'x' * 60}"]
    assert asked[0]["progress"] is True
    assert [one["progress_after"] for one in asked[1:]] == [0, 7, 9]
