"""Traces of a team: what is recorded and masked, how they are packed, and how answers are compared."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from retinue.client.mesh_client import MeshClient
from retinue.core.call import LOCAL, Call, Outcome, Part, Principal, TraceContext
from retinue.core.errors import InvalidSettingError, StateError
from retinue.core.record import ListingKey
from retinue.mesh.observing.events import CallEndedEvent, now
from retinue.runtime.commands.teams import recording as record_commands
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.commands.teams.packing import refuse_existing
from retinue.runtime.commands.teams.recording import RecordOptions, record_calls
from retinue.runtime.commands.teams.replaying import play_call, write_models
from retinue.runtime.commands.teams.source import read_source
from retinue.runtime.parts.teams.rollouts import FollowedRecording
from retinue.runtime.teams.recording import CallRecorder, Recording, marker_of, open_recorder
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State
from retinue.team.package import Team
from retinue.team.replay import ReplayedCall, count_verdicts, exit_status, judge
from retinue.team.trace import (
    RecordedAnswer,
    RecordedCall,
    RecordedCompletion,
    TeamTrace,
    answer_of,
    parse_trace,
    render_trace,
)
from retinue.thinking.completion import COMPLETE
from tests.team.conftest import WriteTeam

DIGEST = "sha256:" + "1" * 64
KEY = "sk-" + "a1B2" * 8
NO_CLIENT: Any = None


def recorded(answer: RecordedAnswer, *masked: str) -> RecordedCall:
    return RecordedCall(agent="word", skill="count", arguments={"text": "a"}, masked=masked, answer=answer)


def value(content: Any) -> RecordedAnswer:
    return RecordedAnswer(value=content)


@pytest.mark.parametrize(
    ("before", "after", "verdict", "detail"),
    [
        (value({"a": [1, "x"]}), value({"a": [1.0, "x"]}), "equal", ""),
        (value({"a": 1}), value({"a": True}), "different", "result.a: 1 → True"),
        (value({"a": 1, "b": 1}), value({"b": 1}), "different", "result.a: 1 → nothing"),
        (value([1, 2]), value([1]), "different", "result: list of 2 → list of 1"),
        (value("one two"), value("one three"), "different", "result: one [-two-]{+three+}"),
        (value(None), RecordedAnswer(error="busy"), "failed", ""),
        (RecordedAnswer(error="busy"), RecordedAnswer(error="busy"), "equal", ""),
        (RecordedAnswer(error="busy"), value(1), "different", ""),
    ],
)
def test_an_answer_is_equal_different_or_failed(
    before: RecordedAnswer, after: RecordedAnswer, verdict: str, detail: str
) -> None:
    replayed = judge(recorded(before), after)
    assert (replayed.verdict, "".join(replayed.details)) == (verdict, detail)


def test_what_was_masked_or_asks_the_model_something_else_cannot_be_told() -> None:
    same, other = value("x"), value("y")
    assert judge(recorded(same), other, unanswered=["system"]).verdict == "cannot tell"
    assert judge(recorded(same, "arguments.text"), same).verdict == "cannot tell"
    assert judge(recorded(same, "result.key"), other).verdict == "cannot tell"
    assert judge(recorded(same, "result.key"), same).verdict == "equal"


def test_the_exit_status_is_0_only_where_something_is_equal_and_nothing_differs() -> None:
    call = recorded(value(1))
    equal, unknown = ReplayedCall(call, "equal"), ReplayedCall(call, "cannot tell")
    assert [exit_status(calls) for calls in ([equal, unknown], [unknown], [])] == [0, 1, 1]
    assert exit_status([equal, ReplayedCall(call, "failed")]) == 1
    assert count_verdicts([equal, unknown, equal])["equal"] == 2


def test_bytes_of_a_result_are_compared_by_their_hash() -> None:
    pictures = [answer_of(Outcome("1", "draw", "done", parts=(Part.image(data),))) for data in (b"1", b"2")]
    assert judge(recorded(pictures[0]), pictures[0]).verdict == "equal"
    assert judge(recorded(pictures[0]), pictures[1]).verdict == "different"


def make_event(
    arguments: Any, result: Any, skill: str = "count", *, team: str = "words", **changes: Any
) -> CallEndedEvent:
    call = Call("1", skill, arguments, LOCAL, "rpc", TraceContext("t1"))
    outcome = Outcome("1", skill, "done", agent="word" if skill == "count" else "hub", value=result)
    place = ListingKey("home", f"agents/{team}/word", "v1.0.0")
    return CallEndedEvent(replace(call, **changes), outcome, now(), place=place)


def test_only_calls_of_the_owner_to_the_team_are_recorded_without_secrets(tmp_path: Path) -> None:
    recording = Recording("1", "words", ["word"], ["edit"], LOCAL.id, time.time() + 60)
    recorder = CallRecorder(recording, tmp_path / "r" / "1.jsonl", ["hunter2-hunter2"])
    recorder.begin()
    recorder(make_event({"text": f"my key is {KEY}"}, {"mail": "ada@example.org"}))
    recorder(make_event({"text": "say hunter2-hunter2"}, "fine"))
    recorder(make_event({}, "of others", principal=Principal("eve", "token")))
    recorder(make_event({}, "of an agent", trace=TraceContext("t2", depth=1)))
    recorder(make_event({}, "of another team", team="news"))
    rows = record_commands._read_rows(tmp_path / "r")
    calls = [RecordedCall.model_validate(row["call"]) for row in rows]
    assert [call.masked for call in calls] == [("arguments.text", "result.mail"), ("arguments.text",)]
    text = (tmp_path / "r" / "1.jsonl").read_text()
    assert not any(secret in text for secret in (KEY, "hunter2", "ada@", "others", "an agent", "another"))
    assert (tmp_path / "r" / "1.jsonl").stat().st_mode & 0o777 == 0o600


class Hub:
    """Tells how runs ended."""

    def __init__(self, **rows: Any) -> None:
        self.rows = rows

    async def get(self, skill: str, arguments: Any) -> Any:
        assert skill == "show_run"
        return self.rows[arguments["run"]]


async def test_runs_of_the_teams_workflows_are_recorded_with_what_they_give(
    tmp_path: Path, teams: TeamCommands, write_team: WriteTeam
) -> None:
    recording = Recording("1", "words", ["word"], ["edit"], LOCAL.id, time.time() + 60)
    recorder = CallRecorder(recording, tmp_path / "r" / "1.jsonl", ["hunter2-hunter2"])
    recorder.begin()
    for run in ("done", "failed", "cancelled", "open"):
        given = {"workflow": "edit", "input": {"text": f"{run} hunter2-hunter2"}}
        recorder(make_event(given, {"run": run, "workflow": "edit"}, "start_run"))
    recorder(make_event({"workflow": "other"}, {"run": "x", "workflow": "other"}, "start_run"))
    recorder(make_event({"workflow": {"name": "edit"}}, {"run": "y", "workflow": "edit"}, "start_run"))
    recorder(make_event({"workflow": "edit", "input": 1}, {"output": "at once"}, "orchestrate_workflow"))
    client: Any = Hub(
        done={"status": "done", "output": {"mail": "ada@example.org"}},
        failed={"status": "failed", "error": {"type": "step_failed"}},
        cancelled={"status": "cancelled"},
        open={"status": "running"},
    )
    answers: dict[str, RecordedAnswer | None] = {}
    assert await record_commands._read_answers(client, tmp_path / "r", answers)
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    rows = record_commands._read_rows(tmp_path / "r")
    trace = record_commands._collect(team, rows, answers, [], 500)
    assert [(call.name, call.answer.error, call.masked) for call in trace.calls] == [
        ("workflow edit", None, ("arguments.input.text", "result.mail")),
        ("workflow edit", "step_failed", ("arguments.input.text",)),
        ("workflow edit", None, ()),
    ]
    assert (trace.calls[2].answer.value, trace.omitted) == ("at once", 2)
    assert not any(secret in str(trace) for secret in ("hunter2", "ada@"))


def test_every_process_of_a_hub_writes_the_replies_of_models_in_a_recorded_run(tmp_path: Path) -> None:
    recording = Recording("1", "words", ["word"], ["edit"], LOCAL.id, time.time() + 60)
    recorders = [CallRecorder(recording, tmp_path / "r" / f"{name}.jsonl", []) for name in ("a", "b")]
    request = {"messages": [{"role": "user", "content": "Edit."}]}
    reply = {"message": {"role": "assistant", "content": "Done."}}
    for recorder in recorders:
        recorder.begin()
    model, trace = Principal("model", "agent"), TraceContext("t9", depth=2)
    given, started = {"workflow": "edit"}, {"run": "1", "workflow": "edit"}
    events = [
        make_event(request, reply, COMPLETE, trace=trace, principal=model),
        make_event(given, started, "start_run", trace=TraceContext("t9")),
    ]
    for event in events:
        recorders[0](event)
    recorders[1](events[0])
    recorders[1](make_event(request, reply, COMPLETE, trace=TraceContext("t8", depth=2), principal=model))
    rows = record_commands._read_rows(tmp_path / "r")
    assert [len(row["completions"]) for row in rows] == [1, 1]


def test_a_recording_whose_time_is_over_records_nothing(tmp_path: Path, state: State) -> None:
    recording = Recording("1", "words", ["word"], ["edit"], LOCAL.id, time.time() - 1)
    marker_of(state).parent.mkdir(exist_ok=True)
    marker_of(state).write_bytes(recording.render())
    assert open_recorder(state) is None
    recorder = CallRecorder(recording, tmp_path / "r" / "1.jsonl", [])
    recorder.begin()
    recorder(make_event({}, 1))
    assert not record_commands._read_rows(tmp_path / "r")


async def test_a_hub_that_does_not_record_is_an_error_and_leaves_nothing(
    state: State, monkeypatch: pytest.MonkeyPatch, teams: TeamCommands, write_team: WriteTeam
) -> None:
    monkeypatch.setattr(record_commands, "BEGIN_WITHIN_S", 0.1)
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    TeamStore(state).write_row(TeamRow("words", team.digest))
    with pytest.raises(StateError, match="does not begin to record"):
        await record_calls(state, NO_CLIENT, team, RecordOptions(1.0), print)
    assert not marker_of(state).exists()


async def test_a_recording_on_a_full_disk_is_one_error(
    state: State, monkeypatch: pytest.MonkeyPatch, teams: TeamCommands, write_team: WriteTeam
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    team: Team = (await teams.pack(write_team(), registry=None, output=None)).team
    TeamStore(state).write_row(TeamRow("words", team.digest))
    monkeypatch.setattr(record_commands, "replace_file", fail)
    with pytest.raises(StateError, match="no space left"):
        await record_calls(state, NO_CLIENT, team, RecordOptions(1.0), print)
    assert not marker_of(state).exists()


def test_traces_are_a_layer_of_the_digest_and_damaged_ones_are_refused(write_team: WriteTeam) -> None:
    folder = write_team()
    (folder / "traces").mkdir()
    trace = TeamTrace(schema=1, team="words", version="1.0.0", digest=DIGEST, calls=(recorded(value(1)),))
    (folder / "traces" / "one.json").write_bytes(render_trace(trace))
    files = {file.path: file for file in read_source(folder).files}
    assert files["traces/one.json"].layer == "traces"
    assert parse_trace(files["traces/one.json"].content, where="x") == trace
    (folder / "traces" / "one.json").write_text('{"schema": 1, "team": 1}')
    with pytest.raises(InvalidSettingError, match=r"traces/one.json: team"):
        read_source(folder)


def test_a_row_that_is_being_written_is_not_read_and_one_that_was_cut_is_left_out(tmp_path: Path) -> None:
    recording = Recording("1", "words", ["word"], [], LOCAL.id, time.time() + 60)
    recorder = CallRecorder(recording, tmp_path / "1.jsonl", [])
    recorder.begin()
    recorder(make_event({"text": "a"}, 1))
    whole = recorder.file.read_bytes()
    recorder.file.write_bytes(whole + whole[:20])
    assert len(record_commands._read_rows(tmp_path)) == 1
    recorder.file.write_bytes(whole + whole[:20] + b"\n" + whole)
    assert ["call" in row for row in record_commands._read_rows(tmp_path)] == [True, False, True]


def test_a_hub_follows_a_recording_whose_marker_has_the_inode_of_the_one_before(state: State) -> None:
    process = Mock(state=state)
    follower, events = FollowedRecording(process), process.dispatcher.admission.events
    marker_of(state).parent.mkdir(exist_ok=True)
    for number in (1, 2):
        recording = Recording(str(number), "words", ["word"], [], LOCAL.id, time.time() + 60)
        marker_of(state).write_bytes(recording.render())  # in its place, as a new file often is
        os.utime(marker_of(state), ns=(0, number))
        follower.look()
        assert len(list(recording.folder(TeamStore(state)).glob("*.jsonl"))) == 1
    assert events.subscribe.call_count == 2


async def test_the_model_that_was_asked_something_else_is_named_among_several(
    write_team: WriteTeam, teams: TeamCommands, tmp_path: Path
) -> None:
    team: Team = (await teams.pack(write_team(), registry=None, output=None)).team
    replies = tuple(
        RecordedCompletion(model=name, request={}, reply={}) for name in ("../../outside", "second")
    )
    trace = TeamTrace(schema=1, team="words", version="1.0.0", digest=DIGEST, completions=replies)
    folder = tmp_path / "replay"
    folder.mkdir()
    models = write_models(folder, team, trace)
    assert all(path.resolve().is_relative_to(folder) for path in models.values())
    models["second"].write_text("asked before\n")

    async def ask(*_: object, **__: object) -> Outcome:
        models["../../outside"].write_text("instructions differ\n")
        return Outcome("1", "count", "done", value=1, agent="word")

    client = AsyncMock(spec=MeshClient)
    client.ask = ask
    replayed = await play_call(client, recorded(value(1)), models)
    assert replayed.text == "its model is asked something else: instructions differ"


def test_a_place_that_cannot_be_written_is_refused_before_calls_are_recorded(tmp_path: Path) -> None:
    refuse_existing(tmp_path / "x.json", force=False)
    (tmp_path / "x.json").write_text("")
    refuse_existing(tmp_path / "x.json", force=True)
    with pytest.raises(InvalidSettingError, match="exists"):
        refuse_existing(tmp_path / "x.json", force=False)
    with pytest.raises(InvalidSettingError, match="away is no folder"):
        refuse_existing(tmp_path / "away" / "x.json", force=True)
