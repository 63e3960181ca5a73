"""The stages of a rollout: what sends the calls back, and that a killed hub goes on with each stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from retinue.core.call import Call, Outcome, Principal, Status, TraceContext, TraceExtension
from retinue.core.errors import ExecutionFailedError, StateError, TeamRefusedError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.rollouts import CHOSEN, Rollouts, mark_of, team_tag
from retinue.mesh.entry import Entry
from retinue.mesh.guard.trace_guard import new_trace
from retinue.mesh.observing.events import CallEndedEvent, now
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.commands.teams.upgrading import RolloutOptions, ask_for_rollout, wait_for_drain
from retinue.runtime.parts.teams.rollouts import FollowedRollouts
from retinue.runtime.teams.comparison import DigestFigures, find_worse
from retinue.runtime.teams.programs import CONFIG, child_name
from retinue.runtime.teams.rolling import MeshOfRollout, RolloutStages
from retinue.runtime.teams.rollout import (
    Stage,
    StoredRollout,
    begin_again,
    choose_digest,
    list_digests,
    list_rollouts,
)
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State
from retinue.team.definition import TeamDefinition
from retinue.team.lock import LockedImport, LockedSkill
from retinue.team.package import Team
from tests.team.conftest import WriteTeam

CHECK = """
[[check.calls]]
skill = "count"
result = 2
"""


@dataclass
class Hub:
    """What a rollout needs of its hub, as the test says it."""

    store: TeamStore
    state: State
    old: Team
    new: Team
    answers: Any = 2
    exam: str = ""
    old_fails: bool = False
    runs: int = 0
    calls_elsewhere: int = 0
    schedule_failures: int = 0
    renewed: list[str] = field(default_factory=list)
    actives: list[str | None] = field(default_factory=list)
    checked: list[TraceContext] = field(default_factory=list)
    weights: list[tuple[Stage, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory = Directory(MemoryListings())
        self.rollouts = Rollouts(self.directory.set_enabled)
        self.directory.subscribe(self.rollouts.note)
        for team in (self.old, self.new):
            record = AgentRecord("words-agent", version=team.version)
            tag = team_tag(team.version, team.digest)
            self.directory.upsert(Listing(record, "home", "agents/words", tag=tag, digest=team.digest))
        self.tell(self.new, url="http://127.0.0.1:1")
        self.apply()

    def tell(self, team: Team, **news: str) -> None:
        child = child_name(team, team.definition.agents[0].target)
        self.store.write_children({child: {"url": "", "name": "words-agent", "error": "", **news}})

    def apply(self) -> None:
        rollouts = list_rollouts(self.state)
        for rollout in rollouts.values():
            self.weights.append((rollout.stage, rollout.weight))
        calls = [rollout.for_calls(team) for team, rollout in rollouts.items()]
        self.rollouts.configure(calls, list(self.directory.list_held()))

    def ask(self, **fields: Any) -> None:
        versions = {team.digest: team.version for team in (self.old, self.new)}
        row = TeamRow("words", active=self.old.digest, version=self.old.version, versions=versions)
        steps = fields.pop("steps", (5, 25, 100))
        hold_s, drain_s = fields.pop("hold_s", 0.0), fields.pop("drain_s", 60.0)
        asked = StoredRollout(
            self.old.digest, self.new.digest, self.new.version, steps, hold_s, drain_s, **fields
        )
        self.store.write_row(replace(row, rollout=asked.as_json()))
        self.apply()

    def stages(self) -> RolloutStages:
        async def dispatch(call: Call) -> Outcome:
            self.checked.append(call.trace)
            return Outcome(call.id, call.skill, "done", value=self.answers)

        async def open_record(entry: Entry) -> AgentRecord | None:
            listing = await self.directory.open(entry)
            return None if listing is None else listing.record

        async def run_workflow(
            name: str, given: Mapping[str, Any], principal: Principal, trace: TraceContext
        ) -> None:
            raise AssertionError(name)

        async def examine(entry: Entry, chain: TraceContext) -> None:
            assert chain.extension is not None
            assert chain.extension.others[CHOSEN] == {"words": mark_of(self.new.digest)}

        async def list_runs(team: str, mark: str, before: float) -> Sequence[str]:
            self.runs -= 1
            return ["run-1"] if self.runs >= 0 else []

        async def renew_schedules(team: Team) -> None:
            if self.schedule_failures:
                self.schedule_failures -= 1
                raise StateError("the runs are locked")
            self.renewed.append(team.digest)
            self.actives.append(self.row.active)

        async def count_elsewhere(mark: str) -> int:
            self.calls_elsewhere -= 1
            return max(self.calls_elsewhere, 0)

        mesh = MeshOfRollout(
            rollouts=self.rollouts,
            dispatch=dispatch,
            open_record=open_record,
            count_calls=lambda entry: 0,
            count_elsewhere=count_elsewhere,
            examine=examine,
            find_exam=lambda entry: self.exam if entry.digest == self.new.digest or self.old_fails else "",
            run_workflow=run_workflow,
            list_runs=list_runs,
            renew_schedules=renew_schedules,
            begin_chain=new_trace,
            apply=self.apply,
        )
        return RolloutStages("words", self.store, mesh, look_s=0.005)

    async def run(self, meanwhile: Callable[[RolloutStages], Awaitable[None]] | None = None) -> TeamRow:
        stages = self.stages()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            running = group.create_task(stages.run())
            if meanwhile is not None:
                await meanwhile(stages)
            await running
        return self.row

    @property
    def row(self) -> TeamRow:
        return self.store.read_rows()["words"]


@pytest.fixture
async def hub(teams: TeamCommands, state: State, write_team: WriteTeam) -> Hub:
    store, packed = TeamStore(state), list[Team]()
    for version in ("1.0.0", "1.1.0"):
        folder = write_team(version, more=CHECK)
        digest = (await teams.pack(folder, registry=None, output=None)).team.digest
        pulled = await teams.pull(digest)
        with store.changing("words"):
            config = await pulled.source.pull_blob(pulled.repository, pulled.manifest.config)
            store.install("words", digest, {CONFIG: config})
        packed.append(pulled.team)
    return Hub(store, state, packed[0], packed[1])


CALLER = Principal("client", "token", frozenset({"exposed", "mesh"}))


def ended(
    team: Team, count: int, *, ms: float = 10.0, failed: int = 0, usd: float = 0.0
) -> list[CallEndedEvent]:
    """Calls of chains that have chosen this digest; the first ``failed`` of them failed."""
    others = {CHOSEN: {"words": mark_of(team.digest)}}
    trace = new_trace().with_extension(TraceExtension(None, others))
    events = []
    for number in range(count):
        call = Call(str(number), "count", {}, CALLER, "execute", trace)
        error = ExecutionFailedError("no") if number < failed else None
        usage = {"cost_usd": usd} if usd else None
        status: Status = "failed" if error else "done"
        outcome = Outcome(call.id, "count", status, "words-agent", error=error, duration_ms=ms, usage=usage)
        events.append(CallEndedEvent(call, outcome, now()))
    return events


async def test_a_rollout_goes_through_its_stages_and_makes_the_new_digest_that_of_the_team(hub: Hub) -> None:
    hub.ask()
    row = await hub.run()
    assert (row.active, row.before, row.rollout, row.failed) == (hub.new.digest, hub.old.digest, {}, {})
    assert hub.weights == [
        *(("asked", 0), ("start", 0), ("check", 0)),
        *(("serve", 5), ("serve", 25), ("serve", 100), ("drain", 100), ("drain", 100)),
    ]
    (checked,) = hub.checked
    assert checked.extension is not None
    assert checked.extension.others[CHOSEN] == {"words": mark_of(hub.new.digest)}


@pytest.mark.parametrize("stage", ["asked", "start", "check", "serve", "drain", "back"])
async def test_a_killed_hub_goes_on_with_the_stage_that_was_written(hub: Hub, stage: Stage) -> None:
    hub.ask(stage=stage, step=1 if stage == "serve" else 0, entered_at=1.0)
    begin_again(hub.state, 2.0)
    hub.weights.clear()
    row = await hub.run()
    assert row.rollout == {}
    if stage == "back":
        assert row.active == hub.old.digest
    elif stage != "drain":
        assert row.active == hub.new.digest
        assert hub.weights[0][1] == 0, "its programs are checked again"
        assert (("serve", 5) in hub.weights) is (stage != "serve")


async def check_back(hub: Hub, *reasons: str) -> None:
    row = hub.row
    assert (row.active, row.rollout) == (hub.old.digest, {})
    assert row.failed["digest"] == hub.new.digest
    for reason in reasons:
        assert reason in row.failed["reason"]
    assert hub.weights[-1] == ("back", 0)


async def test_a_new_digest_that_fails_its_check_gets_no_call(hub: Hub) -> None:
    hub.ask()
    hub.answers = 3
    await hub.run()
    await check_back(hub, "check.calls[0] count gives another result")
    assert {weight for _, weight in hub.weights} == {0}


@pytest.mark.parametrize(
    ("worse", "reason"),
    [
        ({"failed": 4}, "6.7% of its calls fail; of the digest before 0.0% at 25 %"),
        ({"ms": 61.0}, "p95 is 61 ms; of the digest before 10 ms at 25 %"),
        ({"usd": 0.01}, "a call costs $0.0100; of the digest before $0.0000 at 25 %"),
    ],
)
async def test_a_new_digest_that_is_worse_loses_its_calls(hub: Hub, worse: Any, reason: str) -> None:
    hub.ask(steps=(25, 100), hold_s=0.2)

    async def load(stages: RolloutStages) -> None:
        while hub.weights[-1] != ("serve", 25):
            await asyncio.sleep(0.005)
        for event in (*ended(hub.old, 60), *ended(hub.new, 60, **worse)):
            stages.note(event)

    await hub.run(load)
    await check_back(hub, reason)


async def test_equal_calls_and_few_bad_ones_do_not_stop_a_rollout(hub: Hub) -> None:
    hub.ask(steps=(25, 100), hold_s=0.05)

    async def load(stages: RolloutStages) -> None:
        while hub.weights[-1] != ("serve", 25):
            await asyncio.sleep(0.005)
        for event in (*ended(hub.old, 40, failed=2), *ended(hub.new, 19, failed=15, ms=900.0)):
            stages.note(event)

    assert (await hub.run(load)).active == hub.new.digest


async def test_a_program_that_ends_or_an_exam_that_fails_sends_the_calls_back(hub: Hub) -> None:
    hub.ask(steps=(25, 100), hold_s=5.0)

    async def die(stages: RolloutStages) -> None:
        while hub.weights[-1] != ("serve", 25):
            await asyncio.sleep(0.005)
        hub.tell(hub.new, url="http://127.0.0.1:2", ends="1")

    await hub.run(die)
    await check_back(hub, "a program of it ended at 25 %")
    hub.ask(steps=(25, 100), hold_s=5.0)
    hub.exam = "another shape"
    hub.tell(hub.new, url="http://127.0.0.1:2", ends="1")
    await hub.run()
    await check_back(hub, "words-agent fails its exam: another shape")
    assert hub.weights[-2] == ("check", 0)
    hub.old_fails = True
    hub.ask(steps=(100,))
    assert (await hub.run()).active == hub.new.digest


def ask_return(hub: Hub, **fields: Any) -> None:
    """Ask to go back to the digest ``new`` while it ends its runs for the digest ``old``."""
    hub.ask(steps=(100,))
    drain = StoredRollout(hub.new.digest, hub.old.digest, "1.0.0", (100,), 0.0, 60.0, stage="drain")
    row = replace(hub.row, rollout=drain.as_json())
    hub.store.write_row(row)
    options = RolloutOptions(steps=(100,), hold_s=0.0, drain_s=60.0)
    ask_for_rollout(hub.store, row, hub.new, hub.new.definition.rollout, options, "words")
    hub.apply()


async def test_a_digest_that_still_ends_its_runs_goes_on_with_them_when_the_team_goes_back_to_it(
    hub: Hub,
) -> None:
    ask_return(hub)
    assert {*list_digests(hub.row)} == {hub.old.digest, hub.new.digest}
    (rollout,) = hub.rollouts.rollouts
    run = Principal("run", "run", frozenset({"exposed", "mesh"}))
    deep = replace(new_trace(), depth=1)
    for principal, trace in ((run, new_trace()), (CALLER, deep)):
        call = Call("1", "count", {}, principal, "execute", trace)
        assert hub.rollouts.digest_of(rollout, call) == mark_of(hub.new.digest)
    unchosen: list[float] = []
    stages = hub.stages()

    async def list_runs(team: str, mark: str, before: float) -> Sequence[str]:
        assert mark == mark_of(hub.old.digest)
        unchosen.append(before)
        return []

    stages.mesh = replace(stages.mesh, list_runs=list_runs)
    await stages.run()
    assert (hub.row.active, unchosen) == (hub.new.digest, [0.0]), (
        "runs without a choice are not the old one's"
    )


async def test_a_return_that_fails_leaves_the_runs_of_its_digest_to_it(hub: Hub) -> None:
    ask_return(hub)
    hub.exam = "another shape"
    hub.runs = 3
    row = await hub.run()
    assert (row.active, row.rollout) == (hub.old.digest, {})
    assert "fails its exam" in row.failed["reason"]
    assert ("back", 0) not in hub.weights
    assert hub.weights[-1] == ("drain", 100)
    assert hub.runs == -1


async def test_down_ends_a_rollout_and_runs_hold_the_digest_before(hub: Hub) -> None:
    hub.ask(steps=(100,), hold_s=5.0)

    async def stop(stages: RolloutStages) -> None:
        while hub.weights[-1] != ("serve", 100):
            await asyncio.sleep(0.005)
        hub.store.write_row(replace(hub.row, active=None, rollout={}))

    assert (await hub.run(stop)).active is None
    hub.ask(steps=(100,))
    hub.runs = 3
    await hub.run()
    assert hub.runs == -1


async def test_a_new_chain_of_a_schedule_gets_the_digest_of_the_entrance(hub: Hub) -> None:
    hub.ask(stage="serve", steps=(50, 100))
    chosen = {choose_digest(hub.row, str(number)) for number in range(40)}
    assert chosen == {hub.old.digest, hub.new.digest}
    assert choose_digest(replace(hub.row, rollout={}), "1") == hub.old.digest


async def test_a_new_import_is_waited_for_until_it_offers_its_locked_tools(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = {**hub.new.definition.as_json(), "imports": {"pets": {"pypi": "pets==1.0.0"}}}
    locked = LockedImport(tools=(LockedSkill(id="list"),))
    team = replace(
        hub.new,
        definition=TeamDefinition.model_validate(definition),
        lock=hub.new.lock.model_copy(update={"imports": {"pets": locked}}),
    )

    def read(store: TeamStore, name: str, digest: str) -> Team:
        return team if digest == team.digest else hub.old

    monkeypatch.setattr("retinue.runtime.teams.rolling.read_installed", read)
    stages: list[Stage] = []

    def show(digest: Team, *skills: str, is_up: bool) -> None:
        record = AgentRecord("pets", skills=tuple(map(Skill, skills)))
        tag = team_tag(digest.version, digest.digest)
        listing = Listing(record, "imports", "agents/words/pets", tag=tag, digest=f"{skills}")
        entry = hub.directory.upsert(listing)
        if is_up:
            hub.directory.mark_reachable(entry)

    async def connect(running: RolloutStages) -> None:
        for digest, is_up in ((team, False), (hub.old, True), (team, True)):
            while hub.weights[-1][0] != "start":
                await asyncio.sleep(0.005)
            show(digest, "list", is_up=is_up)
            await asyncio.sleep(0.02)
            stages.append(hub.weights[-1][0])

    hub.ask(hold_s=0.1)
    row = await hub.run(connect)
    assert (stages[:2], row.active) == (["start", "start"], hub.new.digest)
    show(team, "list", "other", is_up=True)
    hub.ask()
    await hub.run()
    await check_back(hub, "the import pets offers other, which its lock does not have")


async def test_the_schedules_are_those_of_the_new_digest_before_the_old_one_ends(hub: Hub) -> None:
    hub.ask(steps=(100,))
    hub.schedule_failures = 2
    row = await hub.run()
    assert (hub.renewed, hub.actives, row.rollout) == ([hub.new.digest], [hub.new.digest], {})
    # a hub that was killed in between does it when it starts again, and only once
    fields = {"stage": "drain", "entered_at": time.time()}
    for is_scheduled, renewed in ((False, [hub.new.digest]), (True, [])):
        hub.ask(**fields, is_scheduled=is_scheduled)
        hub.store.write_row(replace(hub.row, active=hub.new.digest))
        hub.renewed.clear()
        await hub.run()
        assert (hub.renewed, hub.row.rollout) == (renewed, {})
    hub.ask()
    hub.answers = 3
    hub.renewed.clear()
    await hub.run()
    assert hub.renewed == [], "a digest that fails changes no schedule"


async def test_the_end_of_a_digest_waits_for_a_command_that_starts_another_one(hub: Hub) -> None:
    hub.ask()
    row = hub.row
    third = "sha256:" + "3" * 64

    async def start(running: RolloutStages) -> None:
        with hub.store.changing("words") as row, hub.store.starting(row, ["third-agent"]):
            hub.store.install("words", third, {CONFIG: b"{}"})
            while hub.weights[-1][0] != "drain":
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert hub.store.has("words", third)
            claimed = hub.row
            assert "third-agent" in claimed.names
            assert claimed.rollout["stage"] == "drain"
            raise TeamRefusedError("not_consented", "words", "nobody agreed to run it")

    hub.store.write_row(replace(row, rollout={**row.rollout, "stage": "drain", "entered_at": time.time()}))
    with pytest.RaisesGroup(TeamRefusedError):
        await hub.run(start)
    assert hub.row.undo is None
    await hub.run()
    assert (hub.row.rollout, hub.store.has("words", third)) == ({}, False)


async def test_up_waits_for_the_digest_that_ends_unless_it_is_told_not_to(hub: Hub) -> None:
    hub.ask(stage="drain", entered_at=1.0)
    hub.state.write_hub("http://127.0.0.1:1")
    third = replace(hub.new, digest="sha256:" + "3" * 64)
    lines: list[str] = []

    async def wait(team: Team, drain_s: float | None = None) -> None:
        options = RolloutOptions(drain_s=drain_s)
        await wait_for_drain(hub.store, hub.state, team, options, lines.append)

    async with asyncio.timeout(60):
        await wait(hub.old)
        await wait(third, 0)
        assert lines == []
        waiting = asyncio.create_task(wait(third))
        while not lines:
            await asyncio.sleep(0.005)
        assert "--drain 0 ends it now" in lines[0]
        assert not waiting.done()
        await hub.run()
        await waiting


async def test_only_agents_of_this_state_with_a_locked_name_are_of_the_digest_that_their_tag_names(
    hub: Hub,
) -> None:
    hub.ask(stage="start")
    directory = Directory(MemoryListings())
    process: Any = SimpleNamespace(
        state=hub.state, get=lambda kind: directory, find=lambda kind: None, dispatcher=SimpleNamespace()
    )
    followed = FollowedRollouts(process)
    followed.apply()
    tag = team_tag(hub.new.version, hub.new.digest)
    for name, source in (("words-agent", "home"), ("words-agent", "elsewhere"), ("other", "home")):
        record = AgentRecord(name, version=hub.new.version)
        directory.upsert(Listing(record, source, f"agents/{name}", tag=tag, digest=f"{source}{name}"))
    assert followed.rollouts is not None
    members = followed.rollouts.list_members(mark_of(hub.new.digest))
    assert [(entry.name, entry.source) for entry in members] == [("words-agent", "home")]


@pytest.mark.parametrize(("slow", "is_worse"), [(0, False), (8, False), (16, True), (60, True)])
def test_a_few_slow_calls_are_chance_and_many_are_not(slow: int, is_worse: bool) -> None:
    old, new = DigestFigures(), DigestFigures()
    for figures, count in ((old, 0), (new, slow)):
        for number in range(60):
            outcome = Outcome(str(number), "count", "done", duration_ms=100.0 if number < count else 10.0)
            figures.add(outcome)
    assert bool(find_worse(old, new)) is is_worse
    new.begin_weight()
    assert find_worse(old, new) == ""


async def test_the_digest_before_ends_after_its_calls_in_other_processes_of_the_hub(hub: Hub) -> None:
    hub.ask(stage="drain", entered_at=time.time())
    hub.calls_elsewhere = 4
    await hub.run()
    assert hub.calls_elsewhere == 0
