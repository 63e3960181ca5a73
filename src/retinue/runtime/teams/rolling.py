"""Takes a team through the stages of its rollout: start, check, weights, and the end of one digest.

Each stage is written before it is entered. After a restart of the hub its programs are checked again, and the
weight is held anew, with new figures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from retinue.core.call import Call, Outcome, Principal, TraceContext, TraceExtension, new_id
from retinue.core.errors import RetinueError, TeamRefusedError
from retinue.core.record import AgentRecord
from retinue.core.text import hide_tokens
from retinue.mesh.directory.rollouts import CHOSEN, Rollouts, mark_of
from retinue.mesh.entry import Entry
from retinue.mesh.observing.events import CallEndedEvent, Event
from retinue.runtime.teams.comparison import DigestFigures, find_worse
from retinue.runtime.teams.offers import check_card, offers_locked_tools
from retinue.runtime.teams.programs import child_name, list_targets, read_installed
from retinue.runtime.teams.rollout import Stage, StoredRollout, read_rollout
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.team.package import Team

READY_WITHIN_S = 75.0
"""Longer than a program may take to start, so that the failure shows its last line."""
LOOK_S = 0.2
SHOWN_RUNS = 5
RENEW_WITHIN_S = 30.0
"""How long the schedules of a team are tried; later, the same ``up`` adds those that are missing."""
BACK_WITHIN_S = 30.0
"""How long the calls in flight of a digest that failed may go on."""

CHECKER = Principal("team-check", "mesh", frozenset({"exposed", "mesh"}))
"""The caller of every entrance check, as access lists and audit rows name it."""

_log = structlog.get_logger("retinue.teams")


@dataclass(frozen=True, slots=True)
class MeshOfRollout:
    """What a rollout needs of its hub.

    ``open_record`` gives the whole record of an entry, and ``count_calls`` its calls in flight;
    ``count_elsewhere`` gives those of a mark in other processes of the hub. ``examine`` makes the entrance
    exam of an agent in a chain of calls, and ``find_exam`` says why an agent failed it. ``run_workflow``
    starts a workflow and waits for its end. ``list_runs`` gives the runs that go on and chose this mark, or
    started before a time without a choice. ``renew_schedules`` makes the schedules of a digest those of its
    team.
    """

    rollouts: Rollouts
    dispatch: Callable[[Call], Awaitable[Outcome]]
    open_record: Callable[[Entry], Awaitable[AgentRecord | None]]
    count_calls: Callable[[Entry], int]
    count_elsewhere: Callable[[str], Awaitable[int]]
    examine: Callable[[Entry, TraceContext], Awaitable[None]]
    find_exam: Callable[[Entry], str]
    run_workflow: Callable[[str, Mapping[str, Any], Principal, TraceContext], Awaitable[None]]
    list_runs: Callable[[str, str, float], Awaitable[Sequence[str]]]
    renew_schedules: Callable[[Team], Awaitable[None]]
    begin_chain: Callable[[], TraceContext]
    apply: Callable[[], None]
    """Makes calls follow the rows, which have changed."""


class _EndedError(Exception):
    """The rollout was replaced or removed by a command."""


@dataclass(slots=True)
class RolloutStages:
    """Takes one team from its present stage to the end of its rollout."""

    name: str
    store: TeamStore
    mesh: MeshOfRollout
    now: Callable[[], float] = time.time
    look_s: float = LOOK_S
    figures: dict[str, DigestFigures] = field(default_factory=dict)

    async def run(self) -> None:
        """Go on until the rollout has ended. A stage that fails sends the chains back to the old digest."""
        stages: Mapping[Stage, Callable[[StoredRollout], Awaitable[None]]] = {
            "asked": self._accept,
            "start": self._wait_until_ready,
            "check": self._check,
            "serve": self._serve,
            "drain": self._drain,
            "back": self._end_failed,
        }
        try:
            while (stored := self._read()) is not None:
                try:
                    await stages[stored.stage](stored)
                except RetinueError as error:
                    if not stored.is_open:
                        raise
                    self._fail(stored, error.message)
        except _EndedError:
            return

    def note(self, event: Event) -> None:
        """Count a call of one of the digests."""
        if not isinstance(event, CallEndedEvent) or event.outcome.agent is None:
            return
        for rollout in self.mesh.rollouts.rollouts:
            if rollout.team == self.name:
                mark = self.mesh.rollouts.digest_at_entrance(rollout, event.call)
                members = self.mesh.rollouts.list_members(mark)
                if event.call.principal != CHECKER and event.outcome.agent in {m.name for m in members}:
                    self.figures.setdefault(mark, DigestFigures()).add(event.outcome)

    async def _accept(self, stored: StoredRollout) -> None:
        self._enter(stored, "start")

    async def _wait_until_ready(self, stored: StoredRollout) -> None:
        """Each program answers, and each card is the packed one."""
        team = read_installed(self.store, self.name, stored.new)
        await self._wait_for_programs(stored, team)
        await self._compare_cards(team)
        self._enter(stored, "check")

    async def _wait_for_programs(self, stored: StoredRollout, team: Team) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while (waiting := await self._find_waiting(stored, team)) is not None:
            if time.monotonic() > deadline:
                problem = f"{waiting} did not answer within {READY_WITHIN_S:.0f} s"
                raise TeamRefusedError("check_failed", self.name, problem)
            await self._pause(stored)

    async def _find_waiting(self, stored: StoredRollout, team: Team) -> str | None:
        news = self.store.read_children()
        for target in list_targets(team):
            row = news.get(child_name(team, target), {})
            if row.get("error"):
                raise TeamRefusedError("check_failed", self.name, str(row["error"]))
            if not row.get("url"):
                return target
        for name in team.definition.imports:
            if not await self._is_connected(team, name):
                return name
        listed = {entry.name for entry in self._members(team.digest)}
        names = {team.lock.agents[agent.target].name for agent in team.definition.agents}
        return next(iter(sorted(names - listed)), None)

    async def _is_connected(self, team: Team, name: str) -> bool:
        """Whether the import of the new digest answers with its locked tools; TeamRefusedError for more."""
        entry = next((entry for entry in self._members(team.digest) if entry.name == name), None)
        if entry is None or entry.health not in ("healthy", "degraded"):
            return False
        record = await self.mesh.open_record(entry)
        return offers_locked_tools(
            team, name, () if record is None else (skill.id for skill in record.skills)
        )

    async def _compare_cards(self, team: Team) -> None:
        for entry in self._members(team.digest):
            if (record := await self.mesh.open_record(entry)) is not None:
                check_card(team, entry.name, record.skills)

    async def _check(self, stored: StoredRollout) -> None:
        """The calls and the workflow of ``[check]``, with the new digest."""
        team = read_installed(self.store, self.name, stored.new)
        check = team.definition.check
        try:
            async with asyncio.timeout(check.timeout_s):
                for number, call in enumerate(check.calls):
                    place = f"check.calls[{number}] {call.skill}"
                    outcome = await self.mesh.dispatch(
                        Call(
                            id=new_id(),
                            skill=call.skill,
                            arguments=dict(call.arguments),
                            principal=CHECKER,
                            endpoint="team",
                            trace=self._chain(stored),
                            agent=None if call.agent is None else team.full_name(call.agent),
                        )
                    )
                    if outcome.error is not None:
                        raise TeamRefusedError("check_failed", self.name, f"{place}: {outcome.error.message}")
                    if "result" in call.model_fields_set and outcome.value != call.result:
                        raise TeamRefusedError("check_failed", self.name, f"{place} gives another result")
                if check.workflow is not None:
                    place = f"check.workflow {check.workflow}"
                    try:
                        full_name = f"{check.workflow}@{self.name}"
                        await self.mesh.run_workflow(full_name, check.input, CHECKER, self._chain(stored))
                    except RetinueError as error:
                        problem = f"{place}: {error.message}"
                        raise TeamRefusedError("check_failed", self.name, problem) from error
        except TimeoutError:
            problem = f"its check did not end within {check.timeout_s:g} s"
            raise TeamRefusedError("check_failed", self.name, problem) from None
        for entry in self._members(stored.new):
            if entry.name in team.agent_names:
                await self.mesh.examine(entry, self._chain(stored))
        self._compare_exams(stored)
        self._enter(stored, "serve")

    def _compare_exams(self, stored: StoredRollout) -> None:
        """Raise TeamRefusedError for an agent that fails its exam, unless the one before fails it, too."""
        failing = {entry.name for entry in self._members(stored.old) if self.mesh.find_exam(entry)}
        for entry in self._members(stored.new):
            if entry.name not in failing and (problem := self.mesh.find_exam(entry)):
                raise TeamRefusedError("check_failed", self.name, f"{entry.name} fails its exam: {problem}")

    async def _serve(self, stored: StoredRollout) -> None:
        """Hold one weight, and compare the digests meanwhile."""
        team = read_installed(self.store, self.name, stored.new)
        ends = self._count_ends(team)
        until = time.monotonic() + stored.hold_s
        while True:
            is_over = time.monotonic() >= until
            if self._count_ends(team) > ends:
                raise TeamRefusedError("check_failed", self.name, "a program of it ended")
            if problem := find_worse(self._figures_of(stored.old), self._figures_of(stored.new)):
                raise TeamRefusedError("check_failed", self.name, problem)
            self._compare_exams(stored)
            if is_over:
                break
            await self._pause(stored)
        if stored.step + 1 < len(stored.steps):
            self._enter(stored, "serve", step=stored.step + 1)
        else:
            self._promote(stored)

    async def _drain(self, stored: StoredRollout) -> None:
        """Renew the schedules, then wait for the chains of the digest before, at most ``drain_s`` in all.

        The digest before ends last, because its workflows are those of the schedules until then.
        """
        if not stored.is_scheduled:
            stored = await self._renew_schedules(stored)
        while self.now() - stored.entered_at < stored.drain_s:
            # in a return, runs without a choice are those of the new digest
            unchosen_before = 0.0 if stored.is_return else stored.entered_at
            runs = await self.mesh.list_runs(self.name, mark_of(stored.old), unchosen_before)
            if not runs and not await self._counts_calls(stored.old):
                break
            if (held_by := tuple(runs[:SHOWN_RUNS])) != stored.held_by:
                stored = replace(stored, held_by=held_by)
                self._change(stored, partial(_with_rollout, stored))
            await self._pause(stored)
        await self._end(stored)

    async def _renew_schedules(self, stored: StoredRollout) -> StoredRollout:
        """Make the schedules of the new digest those of the team; tries again for `RENEW_WITHIN_S`."""
        team = read_installed(self.store, self.name, stored.new)
        deadline = time.monotonic() + RENEW_WITHIN_S
        while True:
            try:
                await self.mesh.renew_schedules(team)
            except RetinueError as error:
                if time.monotonic() < deadline:
                    await self._pause(stored)
                    continue
                _log.warning("schedules not renewed", team=self.name, error=error.message)
            scheduled = replace(stored, is_scheduled=True)
            self._change(stored, partial(_with_rollout, scheduled))
            return scheduled

    async def _end_failed(self, stored: StoredRollout) -> None:
        """Wait for the calls in flight of the digest that failed."""
        until = stored.entered_at + min(BACK_WITHIN_S, stored.drain_s)
        while self.now() < until and await self._counts_calls(stored.new):
            await self._pause(stored)
        await self._end(stored)

    async def _end(self, stored: StoredRollout) -> None:
        """Leave the team with the digest that it has now, and with the names of that one.

        The secrets of a digest that failed are removed. Waits while a command starts another digest of the
        team, which may end this rollout.
        """
        unused: list[str] = []

        def change(row: TeamRow) -> TeamRow:
            if not row.is_settled:
                return row
            names = sorted(read_installed(self.store, self.name, row.active or "").claims)
            ended = self.store.keep_only(replace(row, names=names, rollout={}))
            if stored.stage == "back":
                kept = {digest: file for digest, file in ended.secrets.items() if digest != stored.new}
                ended = replace(ended, secrets=kept)
            unused.extend({*row.secrets.values()} - {*ended.secrets.values()})
            return ended

        while not self._change(stored, change).is_settled:
            await self._pause(stored)
        for file in unused:
            self.store.remove_secrets(self.name, file)

    def _fail(self, stored: StoredRollout, reason: str) -> None:
        place = f" at {stored.weight} %" if stored.stage == "serve" else ""
        reason = hide_tokens(reason.removeprefix(f"{self.name}: ")) + place
        _log.warning("rollout failed", team=self.name, digest=stored.new, reason=reason)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        failed = {"digest": stored.new, "version": stored.version, "reason": reason, "at": at}

        def change(row: TeamRow) -> TeamRow:
            back = stored.turn_back(row, self.now()) if stored.is_return else stored.enter("back", self.now())
            back = replace(back, figures=self._render_figures(back))
            return replace(row, failed=failed, rollout=back.as_json())

        self._change(stored, change)

    def _promote(self, stored: StoredRollout) -> None:
        """Make the new digest the one of the team; the old one ends its chains."""
        draining = replace(stored.enter("drain", self.now()), figures=self._render_figures(stored))

        def change(row: TeamRow) -> TeamRow:
            serving = row.serving(
                stored.new,
                stored.version,
                reference=stored.reference,
                signer=stored.signer,
                data=read_installed(self.store, self.name, stored.new).definition.data,
            )
            return replace(serving, rollout=draining.as_json())

        self._change(stored, change)

    def _enter(self, stored: StoredRollout, stage: Stage, *, step: int | None = None) -> None:
        entered = replace(stored.enter(stage, self.now(), step=step), figures=self._render_figures(stored))
        _log.info("rollout", team=self.name, digest=stored.new, stage=stage, weight=entered.weight)
        for figures in self.figures.values():
            figures.begin_weight()
        self._change(stored, partial(_with_rollout, entered))

    def _change(self, stored: StoredRollout, change: Callable[[TeamRow], TeamRow]) -> TeamRow:
        """Write the row, unless a command has removed or replaced the rollout meanwhile; returns it."""

        def change_own(row: TeamRow) -> TeamRow:
            current = read_rollout(row)
            if current is None or (current.new, current.stage) != (stored.new, stored.stage):
                raise _EndedError
            return change(row)

        row = self.store.change_row(self.name, change_own)
        self.mesh.apply()
        return row

    async def _pause(self, stored: StoredRollout) -> None:
        """Wait a moment; ends where a command has removed or replaced the rollout."""
        await asyncio.sleep(self.look_s)
        current = self._read()
        if current is None or (current.new, current.stage) != (stored.new, stored.stage):
            raise _EndedError

    def _read(self) -> StoredRollout | None:
        row = self.store.read_rows().get(self.name)
        return None if row is None else read_rollout(row)

    def _chain(self, stored: StoredRollout) -> TraceContext:
        """A new chain of calls with the new digest."""
        trace = self.mesh.begin_chain()
        extension = trace.extension or TraceExtension()
        others = {**extension.others, CHOSEN: {self.name: mark_of(stored.new)}}
        return trace.with_extension(TraceExtension(extension.allowance, others))

    def _members(self, digest: str) -> list[Entry]:
        return list(self.mesh.rollouts.list_members(mark_of(digest)))

    async def _counts_calls(self, digest: str) -> int:
        own = sum(self.mesh.count_calls(entry) for entry in self._members(digest))
        return own or await self.mesh.count_elsewhere(mark_of(digest))

    def _count_ends(self, team: Team) -> int:
        """How often programs of a digest have ended since the hub started."""
        news = self.store.read_children()
        children = [child_name(team, target) for target in list_targets(team)]
        return sum(int(news.get(child, {}).get("ends", 0)) for child in children)

    def _figures_of(self, digest: str) -> DigestFigures:
        return self.figures.setdefault(mark_of(digest), DigestFigures())

    def _render_figures(self, stored: StoredRollout) -> dict[str, Any]:
        return {
            "old": self._figures_of(stored.old).as_json(),
            "new": self._figures_of(stored.new).as_json(),
        }


def _with_rollout(rollout: StoredRollout, row: TeamRow) -> TeamRow:
    return replace(row, rollout=rollout.as_json())
