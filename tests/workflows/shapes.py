"""One small workflow for every kind of step: what runs are stopped and killed in, at every point.

Their skills: ``add`` gives ``{n: n + 1}``; ``flaky`` fails at first, then gives ``{n: 10 n}``; ``hang``
never ends; ``late`` gives ``{n: n + 1}`` once a ``hang`` of its run has begun, so that a race against it has
begun before it is won. The agents one, two and three answer a prompt with its number, so does ``tardy``,
late; ``idle`` hangs. The model ``thinker`` makes three calls of ``add`` in each turn that it is asked
for, and then answers the sum of their results (`think_in_turns`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.thinking.completion import AssistantMessage, CompletionRequest, ToolMessage
from retinue.workflows.definitions.loading import load
from retinue.workflows.library import Library, StoredText, WorkflowBundle, bundle
from tests.support.thinking import say, use


@dataclass(frozen=True)
class Shape:
    """The steps of a workflow, those of the stored ones that it runs, and what it is signalled, by topic.

    What one that ``cuts_off`` calls used of its budget is not known to the last call.
    """

    steps: str
    nested: Mapping[str, str] = field(default_factory=dict)
    signals: Mapping[str, Any] = field(default_factory=dict)
    cuts_off: bool = False

    async def bundle(self) -> WorkflowBundle:
        """The workflow with all that it runs."""
        return await bundle(Library([_Texts(self.nested)]), load(_write_text("w", self.steps)))


class _Texts:
    """A shelf of workflows given by their steps."""

    def __init__(self, stored: Mapping[str, str]) -> None:
        self._stored = stored

    async def list_names(self) -> list[str]:
        return list(self._stored)

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        steps = self._stored.get(name)
        return None if steps is None else StoredText(_write_text(name, steps), name)


def _write_text(name: str, steps: str) -> str:
    return f"name: {name}\nsteps:\n{steps}"


def _think(turns: int) -> Shape:
    return Shape(f"""
- {{id: a, skill: add}}
- id: t
  think: {{model: thinker, prompt: "turns: {turns}", tools: ["adder/*"]}}
- {{id: b, skill: add, with: {{n: "${{{{ int(steps.t.output) }}}}"}}}}
""")


def think_in_turns(arguments: Any) -> Any:
    """The next reply of the model ``thinker`` to a conversation."""
    request = CompletionRequest.from_json(arguments)
    turn = sum(isinstance(message, AssistantMessage) for message in request.messages)
    asked = request.messages[0].to_json()["content"][0]["text"]
    if turn < int(asked.removeprefix("turns: ")):
        return use(*(("adder__add", {"n": 10 * turn + place}) for place in range(3))).to_json()
    texts = [
        str(result.content[0].value)
        for message in request.messages
        if isinstance(message, ToolMessage)
        for result in message.results
    ]
    return say(str(sum(int(n) for text in texts for n in re.findall(r'"n":(\d+)', text)))).to_json()


SHAPES = {
    "sequence": Shape("- {id: a, skill: add}\n- {id: b, skill: add}\n- {id: c, skill: add}"),
    "parallel": Shape("""
- {id: a, skill: add}
- id: p
  parallel: {}
  branches:
    left: [{id: b, skill: add}, {id: c, skill: add}]
    right: [{id: d, skill: add}, {id: e, skill: add}]
- {id: f, skill: add, with: {n: "${{ steps.p.output.left.n + steps.p.output.right.n }}"}}
"""),
    "loop": Shape("""
- id: l
  loop: {max: 4, until: steps.b.output.n > 3}
  steps:
    - {id: a, skill: add, with: {n: "${{ has(steps.b.output) ? steps.b.output.n : input.n }}"}}
    - {id: b, skill: add}
"""),
    "when and retry": Shape("""
- {id: a, skill: add}
- {id: b, skill: add, when: steps.a.output.n == 99}
- {id: c, skill: flaky, retry: {attempts: 3, delay: 1ms}}
- {id: d, skill: add}
"""),
    "foreach": Shape("""
- id: each
  foreach: {in: [1, 2, 3, 4], concurrency: 2}
  steps:
    - {id: a, skill: add, with: {n: "${{ loop.item * 10 }}"}}
    - {id: b, skill: add}
- {id: c, skill: add, with: {n: "${{ steps.each.output[0].n + steps.each.output[3].n }}"}}
"""),
    "switch and goto": Shape("""
- {id: a, skill: add, then: s}
- {id: never, skill: add}
- id: s
  switch: steps.a.output.n
  branches:
    "1":
      - {id: b, skill: flaky, on_error: {goto: d}}
      - {id: c, skill: add}
      - {id: d, skill: add, with: {n: 5}}
- {id: e, skill: add}
"""),
    "vote": Shape("""
- id: v
  parallel: {mode: vote, role: execute, agents: [one, two, three], prompt: "1"}
- {id: c, skill: add, with: {n: "${{ steps.v.output.n + size(steps.v.ballots) }}"}}
"""),
    "merge": Shape("""
- id: v
  parallel: {mode: merge, role: execute, agents: [one, two, three], prompt: "1", concurrency: 1}
- {id: c, skill: add, with: {n: "${{ size(steps.v.text) }}"}}
"""),
    "limits": Shape("""
- id: l
  loop: {max: 2}
  timeout: 1h
  steps: [{id: a, skill: add, timeout: 1m}, {id: b, skill: add}]
"""),
    "saga": Shape("""
- {id: a, skill: add, compensate: {skill: add, with: {n: "${{ steps.a.output.n }}"}}}
- id: p
  parallel: {}
  on_error: continue
  steps:
    - {id: b, skill: add, compensate: {skill: add, with: {n: 7}}}
    - {id: c, skill: add, validate: steps.c.output.n == 99}
- {id: d, skill: add, with: {n: "${{ size(steps.p.error.compensated) }}"}}
"""),
    "branches that vote and merge": Shape("""
- id: v
  parallel: {mode: vote}
  branches:
    x: [{id: a, skill: add}]
    y: [{id: b, skill: flaky, retry: {attempts: 2, delay: 1ms}}, {id: c, skill: add}]
    z: [{id: d, skill: add}]
- id: m
  parallel: {mode: merge, concurrency: 1}
  branches:
    x: [{id: e, skill: add, with: {n: "${{ steps.v.output.n + size(steps.v.ballots) }}"}}]
    y: [{id: f, skill: add}]
- {id: g, skill: add, with: {n: "${{ size(steps.m.text) }}"}}
"""),
    "race": Shape(
        """
- id: r
  parallel: {mode: race, role: execute, agents: [idle, tardy], prompt: "1"}
- {id: c, skill: add, with: {n: "${{ steps.r.agent == 'tardy' ? steps.r.output.n : 50 }}"}}
""",
        cuts_off=True,
    ),
    "race of branches": Shape(
        """
- id: r
  parallel: {mode: race}
  branches:
    lost: [{id: a, skill: add}, {id: b, skill: hang}, {id: never, skill: add}]
    won: [{id: c, skill: late}, {id: d, skill: add}]
- {id: e, skill: add, with: {n: "${{ steps.d.output.n + (steps.r.agent == 'won' ? 1 : 50) }}"}}
""",
        cuts_off=True,
    ),
    "nested workflow": Shape(
        """
- {id: a, skill: add}
- {id: w, workflow: outer, with: {n: "${{ steps.a.output.n }}"}}
- {id: c, skill: add}
""",
        nested={
            "outer": "- {id: b, skill: add}\n- {id: v, workflow: inner}\n- {id: d, skill: add}",
            "inner": "- {id: e, skill: flaky, retry: {attempts: 2, delay: 1ms}}\n- {id: f, skill: add}",
        },
    ),
    "nested workflow in a branch": Shape(
        """
- id: p
  parallel: {}
  branches:
    left: [{id: a, skill: add}, {id: w, workflow: inner}]
    right: [{id: b, skill: add}]
- {id: c, skill: add, with: {n: "${{ steps.p.output.left.n + steps.p.output.right.n }}"}}
""",
        nested={"inner": "- {id: d, skill: add}\n- {id: e, skill: add}"},
    ),
    "foreach in a loop": Shape("""
- id: l
  loop: {max: 3, until: steps.b.output.n > 22}
  steps:
    - id: each
      foreach: {in: "${{ [1, has(steps.b.output) ? steps.b.output.n : 2] }}"}
      steps: [{id: a, skill: add, with: {n: "${{ loop.item * 10 }}"}}]
    - {id: b, skill: add, with: {n: "${{ steps.each.output[1].n }}"}}
"""),
    "wait_for": Shape(
        """
- {id: a, skill: add}
- {id: asked, wait_for: {topic: ask, schema: {type: object, required: [n]}}}
- {id: b, skill: add, with: {n: "${{ steps.asked.output.n }}"}}
- {id: gone, wait_for: {topic: go, timeout: 1h}}
- {id: c, skill: add, with: {n: "${{ steps.b.output.n + steps.gone.output }}"}}
""",
        signals={"ask": {"n": 4}, "go": 7},
    ),
    "think": _think(2),
    "compensation that is tried again": Shape("""
- id: l
  loop: {max: 1}
  on_error: continue
  steps:
    - {id: a, skill: add, compensate: {skill: flaky, with: {n: 1}, retry: {attempts: 2, delay: 1ms}}}
    - {id: b, skill: flaky, retry: {attempts: 2, delay: 1ms}, compensate: {skill: add, with: {n: 2}}}
    - {id: c, skill: add, retry: {attempts: 2, delay: 1ms}, validate: steps.c.output.n == 99}
- {id: d, skill: add, with: {n: "${{ size(steps.l.error.compensated.filter(one, one.ok)) }}"}}
"""),
}

LONG_SHAPES = {"think in six turns": _think(6)}
"""For tests that have time."""

HALF_DONE = Shape("""
- {id: a, skill: add}
- id: p
  parallel: {}
  branches:
    left: [{id: b, skill: add}, {id: c, skill: hang}, {id: never, skill: add}]
    right: [{id: d, skill: add}, {id: e, skill: hang}]
""")
"""Not one of them: a run of it goes on until it is cancelled."""

HALF_DONE_EFFECTS = {"done": {"a", "p.left/b", "p.right/d"}, "unknown": {"p.left/c", "p.right/e"}}
"""What has happened, and what may have, once both hang."""
