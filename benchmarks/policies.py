"""Policies: processor time per decision, at 0 to 1,000 policies, on calls and on lists."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any

from benchmarks.figures import Figure
from benchmarks.policies_beside import measure_context_forge
from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.core.call import Call, Principal
from retinue.core.record import AgentRecord, Hints, Listing, Skill
from retinue.mcp.server.offer import ToolCatalog
from retinue.mesh.guard.trace_guard import AdmittedCall, TraceGuard, new_trace
from retinue.mesh.permissions import AgentView, decide_listings, note_skill
from retinue.policies.decision import Engine
from retinue.policies.gate import Gate
from retinue.policies.policy_set import load_policies

CALLS = 3_000
ROUNDS = 5
COUNTS = (10, 100, 1_000)
CONCERNED = 10
"""How many of the policies are about the skill that is called."""

TOOLS = 1_000
SLICE = 100
"""Tools that a list decides about before others run."""

ANN = Principal("token:ann", "token", frozenset({"exposed", "mesh"}))
TARGET = 'principal, action == Retinue::Action::"call", resource == Retinue::Skill::"{}"'
Work = Coroutine[Any, Any, object]

LARGE = {"amount": 10, "rows": [{"name": f"row {number}", "value": number} for number in range(2_600)]}
"""100 kB of arguments of which policies read one number."""


def measure() -> list[Figure]:
    """One decision of the gate with handles that are kept, as a hub has them after the first call."""
    figures = [Figure("dispatch without policies", asyncio.run(_dispatch(0)), "µs")]
    for count in COUNTS:
        gate = make_gate(count)
        spent = _measure_gate(gate, {"amount": 10})
        target = 120 if count == 100 else None
        figures.append(Figure(f"rules, {count} policies, {CONCERNED} concern", spent, "µs", target=target))
    rules = _measure_gate(make_gate(100), {"amount": 10})
    obliged = _measure_gate(make_gate(100, obligations=5), {"amount": 10})
    figures += [
        Figure("obligations beside them, 5 of the 10", obliged - rules, "µs", target=100),
        Figure(
            "100 kB of arguments that no policy reads",
            _measure_gate(make_gate(100), LARGE) - rules,
            "µs",
            target=20,
        ),
        Figure("load and check 100 policies", _measure(lambda: make_gate(100), 1) / 1000, "ms"),
    ]
    figures += [
        Figure(f"plugins of ContextForge, {count}, {CONCERNED} concern the tool", spent, "µs")
        for count, spent in measure_context_forge(COUNTS, CONCERNED).items()
    ]
    for count in COUNTS:
        spent_ms, stall_ms = _measure_list(count)
        figures.append(Figure(f"list of {TOOLS} tools, {count} policies, first time", spent_ms, "ms"))
        figures.append(Figure("  longest slice of 100 tools", stall_ms, "ms", target=20))
    for what, work in (
        (f"list of {TOOLS} tools, each with conditions of its own", _decide_conditions()),
        (f"tools/list of {TOOLS} tools, half of which ask a person", _make_catalog()),
        (f"first call of a skill with {TOOLS} policies of its own", _call_first()),
    ):
        spent_ms, stall_ms = asyncio.run(_measure_stall(work))
        figures.append(Figure(what, spent_ms, "ms"))
        figures.append(Figure("  longest time before others run", stall_ms, "ms", target=20))
    return figures


def make_gate(count: int, *, obligations: int = 0, action: str = "call") -> Gate:
    """A gate with so many policies, `CONCERNED` of them about ``bank/pay``."""
    texts = []
    for number in range(count):
        skill = "bank/pay" if number < CONCERNED else f"agent-{number}/skill"
        effect = '@effect("approve") ' if CONCERNED - obligations <= number < CONCERNED else ""
        scope = (
            TARGET.format(skill)
            if action == "call"
            else f'principal, action, resource in Retinue::Tag::"{number}"'
        )
        condition = (
            f"context.args has amount && context.args.amount > {1_000 + number}"
            if action == "call"
            else "resource.destructive"
        )
        texts.append(f'@id("p{number}") {effect}forbid({scope}) when {{ {condition} }};')
    return Gate(Engine(load_policies({"p.cedar": "\n".join(texts)})))


def make_listing(name: str = "bank", skills: int = 0) -> Listing:
    """An agent with the skill that is called, or with many for a list, each with a tag of some policy."""
    pay = Skill("pay", hints=Hints(destructive=True))
    many = (Skill(f"tool-{number}", tags=(str(number % 100),)) for number in range(skills))
    return Listing(AgentRecord(name, version="1.0.0", skills=(pay, *many)), "home", f"agents/{name}")


def _measure_gate(gate: Gate, arguments: dict[str, Any]) -> float:
    """Microseconds of processor time of one check."""
    listing = make_listing()
    skill = listing.record.skills[0]
    call = Call("1", "pay", arguments, ANN, "mcp", new_trace(), "bank")
    admitted: AdmittedCall = TraceGuard().enter(call, "bank")
    call = replace(call, trace=admitted.trace)

    async def run() -> float:
        await gate.check(call, listing, skill, admitted)
        best = float("inf")
        for _ in range(ROUNDS):
            started = time.process_time()
            for _ in range(CALLS):
                await gate.check(call, listing, skill, admitted)
            best = min(best, (time.process_time() - started) / CALLS)
        return best * 1e6

    return asyncio.run(run())


def _measure_list(count: int) -> tuple[float, float]:
    """Milliseconds of the decisions about a list, and of its longest slice."""
    listing = make_listing(skills=TOOLS)
    shown = make_gate(count, action="list").filter_lists(ANN)
    assert shown is not None
    slices = []
    for start in range(0, TOOLS, SLICE):
        started = time.process_time()
        for skill in listing.record.skills[start : start + SLICE]:
            shown(listing, skill)
        slices.append(time.process_time() - started)
    return sum(slices) * 1000, max(slices) * 1000


def _decide_conditions() -> Work:
    """The decisions about a list of which each tool has a rule."""
    texts = [
        f'@id("p{number}") forbid(principal, action == Retinue::Action::"list", '
        f'resource == Retinue::Skill::"bank/tool-{number}") when {{ resource.version == "{number}" }};'
        for number in range(TOOLS)
    ]
    shown = Gate(Engine(load_policies({"p.cedar": "\n".join(texts)}))).filter_lists(ANN)
    return decide_listings(AgentView(frozenset(), (), shown), [make_listing(skills=TOOLS)])


def _make_catalog() -> Work:
    """The catalog of an MCP client, whose list says which tools ask a person."""
    texts = [
        f'@id("p{number}") @effect("approve") forbid(principal, action == Retinue::Action::"call", '
        f'resource == Retinue::Skill::"bank/tool-{2 * number}");'
        for number in range(TOOLS // 2)
    ]
    view = AgentView(
        frozenset(), (), notes=Gate(Engine(load_policies({"p.cedar": "\n".join(texts)}))).note_lists(ANN)
    )
    listing = make_listing(skills=TOOLS)

    async def make() -> None:
        await decide_listings(view, [listing])
        catalog = await ToolCatalog.make(
            ("bank", note_skill(view, listing, skill)) for skill in listing.record.skills
        )
        assert len(catalog.listed) > 100_000

    return make()


def _call_first() -> Work:
    """One decision, for which the handles of many policies are made."""
    texts = [
        f'@id("p{number}") forbid({TARGET.format("bank/pay")}) '
        f"when {{ context.args has amount && context.args.amount > {TOOLS + number} }};"
        for number in range(TOOLS)
    ]
    gate = Gate(Engine(load_policies({"p.cedar": "\n".join(texts)})), run_in_thread=asyncio.to_thread)
    listing = make_listing()
    call = Call("1", "pay", {"amount": 10}, ANN, "mcp", new_trace(), "bank")
    admitted: AdmittedCall = TraceGuard().enter(call, "bank")
    call = replace(call, trace=admitted.trace)
    return gate.check(call, listing, listing.record.skills[0], admitted)


async def _measure_stall(work: Work) -> tuple[float, float]:
    """Milliseconds of processor time of the work, and before others run."""
    # as a hub does after its start and after it has loaded policies
    gc.freeze()
    times = [time.thread_time()]

    async def look() -> None:
        while True:
            await asyncio.sleep(0)
            times.append(time.thread_time())

    looking = asyncio.create_task(look())
    started = time.process_time()
    await work
    spent_s = time.process_time() - started
    looking.cancel()
    longest_s = max(after - before for before, after in pairwise(times))
    return spent_s * 1000, longest_s * 1000


def _measure(work: Callable[[], object], runs: int) -> float:
    """Microseconds of processor time of one run, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(runs):
            work()
        best = min(best, (time.process_time() - started) / runs)
    return best * 1e6


async def _dispatch(_: int) -> float:
    """Microseconds of one dispatch of a process without policies."""
    agent = Agent("bank")

    @agent.skill
    async def pay(amount: int) -> dict[str, int]:
        """Pays."""
        return {"amount": amount}

    dispatcher = local_dispatcher(agent)
    call = Call("1", "pay", {"amount": 10}, ANN, "mcp", new_trace(), "bank")
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(CALLS):
            await dispatcher.dispatch(call)
        best = min(best, (time.process_time() - started) / CALLS)
    return best * 1e6
