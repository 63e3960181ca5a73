"""A run as a tree of steps, and the list of its effects, computed from its events and records.

The tree follows the paths of steps (``interpreter.step_loop``): ``each.left/draft`` is below ``each.left``,
which is below ``each``. Calls that serve a step, such as its choice of an agent, belong to its node: the
fact ``below`` is the part of a path that is not the step's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.workflows.runs.records import RunEvent, StepRecord

_CALLS = ("call", "undo", "review")
_TRY = re.compile(r"(?:@\d+|/again)+$")
_OF_THE_RUN = re.compile(r"(?:^|/)(?:cache/(?:find|keep)|settings/max_duration)$")
_SERVING = ("choose", "clock", "fail")
_LEVEL = re.compile(r"(?=[./#])")
_FACTS = ("topic", "message", "schema", "when", "branch", "value", "role", "cached")


@dataclass(slots=True)
class Node:
    """The state of one step: running, waiting, done, failed, skipped, cancelled or kept.

    ``kept`` = done in the run that this one was forked from. ``attempts`` has the agent of each attempt,
    its start (seconds since 1970), duration and error.
    """

    path: str
    kind: str = ""
    status: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[str, Node] = field(default_factory=dict)

    def settle(self, ended: str | None) -> str:
        """Derive a missing status from the nodes below and the end of the run; returns the status."""
        below = [node.settle(ended) for node in self.steps.values()]
        if self.status in ("running", "waiting") and ended is not None:
            self.status = "cancelled" if ended == "cancelled" else "failed"
        if not self.status:
            order = ("running", "waiting", "failed", "cancelled", "done", "kept")
            self.status = next((one for one in order if one in below), "done")
        # A failure that on_error handled does not count for the steps around it.
        return "done" if self.status == "failed" and "handled" in self.facts else self.status

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"step": self.path, "kind": self.kind or "group", "status": self.status}
        found |= self.facts
        if self.attempts:
            found["attempts"] = self.attempts
        if self.steps:
            found["steps"] = [node.to_json() for node in self.steps.values()]
        return found


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
    for node in tree.root.steps.values():
        node.settle(ended)
    return [node.to_json() for node in tree.root.steps.values()]


def list_effects(events: Iterable[RunEvent]) -> dict[str, list[dict[str, Any]]]:
    """The calls of a run: ``done`` = the skill succeeded, ``unknown`` = it may have been executed.

    Each has step, skill and agent; in the order of their start.
    """
    calls: dict[str, dict[str, Any]] = {}
    state: dict[str, str] = {}
    for event in events:
        if event.facts.get("kind") not in _CALLS:
            continue
        facts = event.facts
        calls[event.step] = {"step": event.step, "skill": facts.get("skill"), "agent": facts.get("agent")}
        if event.kind == "step_started":
            state[event.step] = "unknown"
        elif event.kind == "step_finished":
            error = facts.get("error")
            state[event.step] = "done" if error is None else "unknown" if _may_have_run(error) else "failed"
    return {
        word: [call for step, call in calls.items() if state[step] == word] for word in ("done", "unknown")
    }


def _may_have_run(error: Mapping[str, Any]) -> bool:
    """Whether a call that failed may have had its effect nevertheless."""
    return error.get("type") in ("timeout", "cancelled") or bool((error.get("data") or {}).get("sent"))


class _Tree:
    """Builds the nodes from events and records."""

    def __init__(self) -> None:
        self.root = Node("")
        self._calls: dict[str, str] = {}

    def take(self, event: RunEvent) -> None:
        if not event.step or _OF_THE_RUN.search(event.step):
            return
        facts, kind = event.facts, str(event.facts.get("kind", ""))
        step = event.step.removesuffix(str(facts.get("below", "")))
        node = self._node(step)
        if event.kind in ("run_started", "run_finished", "run_resumed"):
            if event.kind == "run_finished":
                node.status = str(facts["status"])
                for below in node.steps.values():
                    below.settle(node.status)
        elif kind == "handled":
            node.facts["handled"] = facts.get("on_error")
        elif kind in _CALLS:
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
        if node.kind == "wait":
            node.facts["output"] = value
        elif is_call:
            node.facts["output"] = value["value"]
            node.facts.setdefault("agent", value["agent"])
            if value.get("cached"):
                node.facts["cached"] = True
            if not node.status:
                node.kind, node.status = "call", "kept"

    def _node(self, step: str) -> Node:
        """The node of a path, created together with the nodes around it."""
        node, path = self.root, ""
        for level in _LEVEL.split(step):
            path += level
            node = node.steps.setdefault(path, Node(path))
        return node


def _take_call(node: Node, event: RunEvent, kind: str) -> None:
    facts = event.facts
    node.kind = kind
    node.facts |= {key: facts[key] for key in ("skill", "agent", "role") if facts.get(key) is not None}
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
    if error is not None:
        node.facts["error"] = error


def _take_other(node: Node, event: RunEvent, kind: str) -> None:
    facts = event.facts
    node.kind = kind
    node.facts |= {key: facts[key] for key in _FACTS if facts.get(key)}
    if event.kind == "step_started":
        node.facts.setdefault("started_at", event.at)
        node.status = "waiting" if kind == "wait" else node.status
    elif facts.get("error") is not None:
        node.status, node.facts["error"] = "failed", facts["error"]
    elif kind == "skip":
        node.status = "skipped"
    elif kind == "wait":
        node.status = "done"
        node.facts["duration_ms"] = facts.get("duration_ms")
