"""Compares the journal of the runs with the files of the agents, row by row."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.core.errors import CircuitOpenError
from retinue.workflows.runs.records import RunEvent, RunRecord, StepRecord
from tests.crash.storm.shop import DECLINING, UNDOES, Line, is_declined
from tests.crash.storm.starter import Ordered

_ATTEMPT = re.compile(r"@\d+$")
_LATE_S = 0.05
"""Two processes of a machine read its clock so close to each other."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What the runs' database says about one run; ``record`` is None where it does not know the run."""

    ordered: Ordered
    record: RunRecord | None
    events: Sequence[RunEvent] = ()
    steps: Sequence[StepRecord] = ()

    @property
    def outcomes(self) -> Iterable[tuple[StepRecord, Mapping[str, Any]]]:
        """The recorded results of calls."""
        for step in self.steps:
            value = step.outcome.value
            if isinstance(value, dict) and "agent" in value and isinstance(value.get("value"), dict):
                yield step, value["value"]


@dataclass(slots=True)
class Verdict:
    """What went wrong, by run.

    ``told`` is what runs say themselves that they could not undo, ``gave_up`` are runs whose step used up its
    attempts because its agent was lost in each of them. All else is to be empty.
    """

    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    half_undone: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)
    effects: int = 0
    again: int = 0
    """Effects, and how often one was begun once more with its key."""

    @property
    def problems(self) -> dict[str, list[str]]:
        names = ("lost", "stuck", "repeated", "doubled", "half_undone", "wrong")
        return {name: found for name in names if (found := getattr(self, name))}


def judge(journals: Iterable[Journal], lines: Sequence[Line]) -> Verdict:
    """Compare what the runs recorded with what the agents wrote."""
    verdict = Verdict()
    by_run: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_run[line.run.partition("~")[0]].append(line)
    for journal in journals:
        own = by_run[journal.ordered.name]
        begun = [line.key for line in own if line.what == "begin"]
        verdict.effects += len(set(begun))
        verdict.again += len(begun) - len(set(begun))
        if journal.record is None:
            verdict.lost.append(f"{journal.ordered.name}: unknown")
        elif journal.record.status == "running":
            verdict.stuck.append(journal.ordered.name)
        else:
            _judge_end(verdict, journal, journal.record)
            _judge_effects(verdict, journal, own)
            _judge_keys(verdict, journal, own)
            _judge_undoing(verdict, journal, journal.record, own)
    return verdict


def _judge_end(verdict: Verdict, journal: Journal, record: RunRecord) -> None:
    ordered = journal.ordered
    wanted = "failed" if is_declined(ordered.kind, ordered.n) else "done"
    fault = record.fault
    is_declining = fault is None or "declined" in fault.message
    if record.status == wanted and is_declining:
        return
    message = "" if fault is None else fault.message
    cause = {} if fault is None else fault.data.get("cause", {})
    is_lost = (
        cause.get("on_error") in ("unreachable", "timeout") or cause.get("type") == CircuitOpenError.type
    )
    (verdict.gave_up if is_lost else verdict.wrong).append(
        f"{ordered.name} ({ordered.kind}): {record.status} {message}"
    )


def _judge_effects(verdict: Verdict, journal: Journal, own: Sequence[Line]) -> None:
    """Each recorded result is that of an effect which came to its end, and nothing began after it."""
    ended = {line.key for line in own if line.what == "end"}
    finished = {event.step: event.at for event in journal.events if event.kind == "step_finished"}
    for step, value in journal.outcomes:
        if value["key"] not in ended:
            verdict.lost.append(f"{journal.ordered.name}: {step.step} was recorded and never ended")
        at = finished.get(step.step)
        late = [
            line
            for line in own
            if line.what == "begin" and line.key == value["key"] and at is not None and line.at > at + _LATE_S
        ]
        if late:
            verdict.repeated.append(f"{journal.ordered.name}: {step.step} began after it was recorded")


def _judge_keys(verdict: Verdict, journal: Journal, own: Sequence[Line]) -> None:
    """No effect under two keys, except after an answered failure, which only one skill gives."""
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for line in own:
        if line.what == "begin" and line.skill != DECLINING:
            keys[_ATTEMPT.sub("", line.key)].add(line.key)
    for place, used in keys.items():
        if len(used) > 1:
            verdict.doubled.append(f"{journal.ordered.name}: {place} under {sorted(used)}")


def _judge_undoing(verdict: Verdict, journal: Journal, record: RunRecord, own: Sequence[Line]) -> None:
    """An undone run has undone each effect after its last end, unless it says which it could not undo."""
    name, fault = journal.ordered.name, record.fault
    rows = [] if fault is None else fault.data.get("compensated", [])
    named = {row.get("key") for row in rows if not row["ok"]}
    if record.is_half_undone:
        verdict.told.append(f"{name}: {[row for row in rows if not row['ok']]}")
    for skill, undo in UNDOES.items():
        done: dict[str, Line] = {line.key: line for line in own if line.what == "end" and line.skill == skill}
        undone = [line for line in own if line.what == "end" and line.skill == undo]
        if fault is None:
            if undone:
                verdict.half_undone.append(f"{name}: done, and {undo} was called")
            continue
        for key, line in done.items():
            later = [
                one for one in undone if one.key.startswith(f"{_ATTEMPT.sub('', key)}") and one.at > line.at
            ]
            if not later and key not in named:
                verdict.half_undone.append(f"{name}: {key} ended and was not undone after that")
        unmatched = {one.key for one in undone if not any(_covers(one.key, key) for key in done)}
        if len({_ATTEMPT.sub("", key) for key in unmatched}) > 0:
            verdict.half_undone.append(f"{name}: {sorted(unmatched)} undid what was not done")


def _covers(undo: str, key: str) -> bool:
    return undo.startswith(_ATTEMPT.sub("", key))
