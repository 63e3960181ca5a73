"""Computes a tree of steps and the list of effects from the events and records of a run.

The tree follows the paths of steps (``interpreter.step_loop``): ``each.left/draft`` is below ``each.left``,
which is below ``each``. Calls that serve a step, such as its choice of an agent, belong to its node: the
fact ``below`` is the part of a path that is not the step's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.core.errors import ApprovalNeededError
from retinue.core.parts import PARTS_FIELD
from retinue.workflows.runs.records import RunEvent, StepRecord

_CALLS = ("call", "undo", "review")
_SHOWN_CALLS = (*_CALLS, "model")
"""Kinds that are shown as calls; a request to a model has no effect on the mesh."""

_WAITS = ("wait", "timer")
_UNDOING = ("undo", "settle")
_TRY = re.compile(r"(?:@\d+|/again|/answered-\d+)+$")
_OF_THE_RUN = re.compile(r"(?:^|/)(?:cache/(?:find|keep)|settings/max_duration)$")
_RUN_EVENTS = ("run_started", "run_finished", "run_resumed")
_SERVING = ("choose", "clock", "random", "fail", "settle")
_LEVEL = re.compile(r"(?=[./#])")
_CALL_FACTS = ("skill", "agent", "role", "warning")
_QUESTION_FACTS = ("approval", "call")
"""A question about a call: its id, and the path of the call."""

_FACTS = (
    "topic",
    "until",
    "message",
    "schema",
    "when",
    "branch",
    "value",
    "role",
    "cached",
    *_QUESTION_FACTS,
)


@dataclass(slots=True)
class StepNode:
    """The state of one step: running, waiting, done, failed, skipped, cancelled or kept.

    ``kept`` = done in the run that this one was forked from. ``attempts`` has the agent of each attempt,
    its start (seconds since 1970), duration and error.
    """

    path: str
    kind: str = ""
    status: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[str, StepNode] = field(default_factory=dict)
    is_run: bool = False
    """Whether it is a child run, whose end is an event of its own."""

    def settle(self, ended: str | None, *, is_followed: bool = False) -> str:
        """Derive a missing status from the nodes below and the end of the run around; returns the status.

        ``is_followed`` = a later step of the same level has begun, so this one has come to its end. A won
        race is done, and its losers are cancelled, like all that was cut off.
        """
        if self.status in ("running", "waiting") and ended is not None:
            self.status = "cancelled"
        is_handled = "handled" in self.facts
        inner = ended
        if self.is_run and self.status != "running":
            inner = self.status
        elif not self.status and (is_handled or is_followed):
            inner = "failed" if is_handled else "done"
        nodes = list(self.steps.values())
        below = [node.settle(inner, is_followed=node is not nodes[-1]) for node in nodes]
        if not self.status:
            self.status = _join(below, inner)
        elif self.is_run and self.status == "running" and "waiting" in below and "running" not in below:
            self.status = "waiting"
        # A failure that on_error handled does not count for the steps around it.
        return "done" if self.status == "failed" and is_handled else self.status

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"step": self.path, "kind": self.kind or "group", "status": self.status}
        document |= self.facts
        if self.attempts:
            document["attempts"] = self.attempts
        if self.steps:
            document["steps"] = [node.to_json() for node in self.steps.values()]
        return document


def draw_tree(
    events: Iterable[RunEvent], records: Iterable[StepRecord] = (), *, ended: str | None = None
) -> list[dict[str, Any]]:
    """The outermost steps of a run with the steps below them, as JSON.

    ``ended`` is the final status of the run, None while it runs.
    """
    tree = _Tree()
    for event in events:
        tree.take(event)
    for record in records:
        tree.complete(record)
    tree.root.status, tree.root.is_run = ended or "running", True
    tree.root.settle(ended)
    return [node.to_json() for node in tree.root.steps.values()]


def _join(below: Sequence[str], ended: str | None) -> str:
    """The status of a group of steps; ``ended`` is how the group, or the run around it, came to its end."""
    going_on = next((status for status in ("running", "waiting") if status in below), None)
    if going_on is not None:
        return going_on
    if ended in ("done", "failed") and "failed" not in below and "done" in below:
        # What was cut off has lost a race.
        return "done"
    if ended == "done":
        return "done"
    return next((status for status in ("failed", "cancelled", "done", "kept") if status in below), "done")


EFFECTS = ("done", "undone", "to_undo", "unknown")


def list_effects(events: Iterable[RunEvent]) -> dict[str, list[dict[str, Any]]]:
    """The calls of a run that had an effect, in the order of their start, each with step, skill and agent.

    ``done`` = the skill succeeded, ``undone`` = it was compensated since, ``to_undo`` = it is still to be
    compensated by a run that has begun to do so, ``unknown`` = it may have been executed.
    """
    calls: dict[str, dict[str, Any]] = {}
    state: dict[str, str] = {}
    undoable: dict[str, str] = {}
    undone: set[str] = set()
    is_undoing = False
    for event in events:
        facts, kind = event.facts, event.facts.get("kind")
        step = event.step.removesuffix(str(facts.get("below", "")))
        is_undoing = is_undoing or kind in _UNDOING or facts.get("serves") in _UNDOING
        if kind == "settle" and event.kind == "step_finished":
            _settle_attempts(state, undoable, step, facts.get("error"))
        if kind not in _CALLS:
            continue
        calls[event.step] = {"step": event.step, "skill": facts.get("skill"), "agent": facts.get("agent")}
        if event.kind == "step_started":
            state[event.step] = "unknown"
        elif event.kind == "step_finished":
            error = facts.get("error")
            state[event.step] = "done" if error is None else "unknown" if _may_have_run(error) else "failed"
        if kind == "undo" and state[event.step] == "done":
            undone.add(step.removesuffix("/undo"))
            state[event.step] = "undoing"
        elif facts.get("undo") is not None:
            undoable[event.step] = step
    for name, step in undoable.items():
        is_undone = name in undone or f"{name}@1" in undone
        if state[name] == "done":
            state[name] = "undone" if is_undone or step in undone else "to_undo" if is_undoing else "done"
        elif state[name] == "unknown" and is_undone:
            state[name] = "undone"
    return {word: [call for step, call in calls.items() if state[step] == word] for word in EFFECTS}


def _settle_attempts(
    state: dict[str, str], undoable: Mapping[str, str], step: str, error: Mapping[str, Any] | None
) -> None:
    """Take the outcome of the attempts of a step, for which their agent was asked, into ``state``."""
    if error is not None and _may_have_run(error):
        return
    for name, place in undoable.items():
        if place == step and state[name] == "unknown":
            state[name] = "done" if error is None else "failed"


def _may_have_run(error: Mapping[str, Any]) -> bool:
    """Whether a call that failed may have had its effect nevertheless."""
    return error.get("type") in ("timeout", "cancelled") or bool((error.get("data") or {}).get("sent"))


class _Tree:
    """Builds the nodes from events and records."""

    def __init__(self) -> None:
        self.root = StepNode("")
        self._calls: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        self._nodes: dict[str, StepNode] = {}

    def take(self, event: RunEvent) -> None:
        if event.kind == "log":
            return
        facts, kind = event.facts, str(event.facts.get("kind", ""))
        step = event.step.removesuffix(str(facts.get("below", "")))
        is_of_run = event.kind in _RUN_EVENTS
        if is_of_run:
            # the ends of child runs that earlier releases stored have no step
            step = self._runs[event.run_id] = step or self._runs.get(event.run_id, "")
        if not step or _OF_THE_RUN.search(event.step):
            return
        node = self._node(step)
        if is_of_run:
            node.is_run = True
            node.status = str(facts["status"]) if event.kind == "run_finished" else "running"
        elif kind == "handled":
            node.facts["handled"] = facts.get("on_error")
        elif kind == "extend":
            node.status = ""  # it goes on after its limit had ended it
            node.facts.pop("error", None)
            node.facts.setdefault("extended", []).append({"after": event.step, "limits": facts.get("limits")})
        elif kind in _SHOWN_CALLS:
            self._calls[event.step] = step
            _take_call(node, event, kind)
        elif kind in _SERVING:
            if facts.get("error") is not None:
                node.status, node.facts["error"] = "failed", facts["error"]
        elif kind != "refused_signal":
            self._calls[event.step] = step
            _take_other(node, event, kind)

    def complete(self, record: StepRecord) -> None:
        """Add the output of a step; for a call without events, which a fork kept, also its status."""
        value = record.outcome.value
        is_call = isinstance(value, Mapping) and "agent" in value and "value" in value
        if _OF_THE_RUN.search(record.step) or record.outcome.fault is not None:
            return
        if record.step not in self._calls and not is_call:
            return
        node = self._node(self._calls.get(record.step, _TRY.sub("", record.step)))
        if node.kind in ("wait", "read"):
            node.facts["output"] = value
        elif node.kind == "think":
            node.facts["loop"] = _describe_plan(value)
        elif node.kind == "find":
            node.facts["output"] = _list_found(value)
        elif is_call:
            node.facts["output"] = value["value"]
            node.facts.setdefault("agent", value["agent"])
            if value.get(PARTS_FIELD):
                node.facts[PARTS_FIELD] = value[PARTS_FIELD]
            if value.get("cached"):
                node.facts["cached"] = True
            if usage := record.outcome.spent or value.get("usage"):
                node.facts["usage"] = usage
            if not node.status:
                node.kind, node.status = "call", "kept"

    def _node(self, step: str) -> StepNode:
        """The node of a path, created together with the nodes around it."""
        if (known := self._nodes.get(step)) is not None:
            return known
        node, path = self.root, ""
        for level in _LEVEL.split(step):
            path += level
            node = node.steps.get(path) or node.steps.setdefault(path, StepNode(path))
        self._nodes[step] = node
        return node


def _describe_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a loop without the schemas of its tools."""
    kept = ("agent", "instructions", "history", "prompt", "approve", "deny", "output", "limits")
    tools = [f"{tool['agent']}/{tool['skill']}" for tool in plan["tools"]]
    return {**{key: plan[key] for key in kept if plan.get(key)}, "tools": tools}


def _list_found(value: Mapping[str, Any]) -> list[str]:
    """The skills that a model found by its searches of one turn, without those that it had."""
    return [f"{tool['agent']}/{tool['skill']}" for row in value["searches"] for tool in row["tools"]]


def _take_call(node: StepNode, event: RunEvent, kind: str) -> None:
    facts = event.facts
    node.kind = kind
    node.facts |= {key: facts[key] for key in _CALL_FACTS if facts.get(key) is not None}
    if event.kind == "step_started":
        node.status = "running"
        node.facts.setdefault("started_at", event.at)
        node.facts["input"] = facts.get("input")
        node.attempts.append({"agent": facts.get("agent"), "started_at": event.at})
        return
    error = facts.get("error")
    node.status = "done" if error is None else "failed"
    node.facts["duration_ms"] = facts.get("duration_ms")
    node.facts.pop("error", None)
    ended = {"duration_ms": facts.get("duration_ms")} | ({} if error is None else {"error": error})
    if node.attempts:
        node.attempts[-1] |= ended
    if error is not None and error.get("type") == ApprovalNeededError.type and "step" in error["data"]:
        node.status = "waiting"  # until a person has decided about it
    elif error is not None:
        node.facts["error"] = error


def _take_other(node: StepNode, event: RunEvent, kind: str) -> None:
    facts = event.facts
    node.kind = kind
    node.facts |= {key: facts[key] for key in _FACTS if facts.get(key)}
    if event.kind == "step_started":
        node.facts.setdefault("started_at", event.at)
        node.status = "waiting" if kind in _WAITS else node.status
    elif facts.get("error") is not None:
        node.status, node.facts["error"] = "failed", facts["error"]
    elif kind == "skip":
        node.status = "skipped"
    elif kind in _WAITS:
        node.status = "done"
        node.facts["duration_ms"] = facts.get("duration_ms")
