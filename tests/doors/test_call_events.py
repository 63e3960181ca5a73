"""What is told of every call, whichever endpoint it takes: the event before it runs, the audit, the span."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.mesh.observing.events import Event, EventBus, ToolCallEvent, record_calls
from tests.doors.office import Office
from tests.requirements import requirement
from tests.support.memory_audit import MemoryAudit
from tests.system import System, Wire

KEYS = ["type", "id", "tool", "arguments", "caller", "trace_id", "depth", "timestamp"]
PLAN = {"requirements": "a parser"}
STEP = {"name": "w", "steps": [{"id": "go", "skill": "create_plan", "with": PLAN}]}


class Ears:
    """Hears a bus: each event, and whether the skill had run by then."""

    def __init__(self, office: Office, bus: EventBus) -> None:
        self.told: list[ToolCallEvent] = []
        self.early: list[bool] = []
        self.audit = MemoryAudit()
        self._office = office
        bus.subscribe(self._hear)
        bus.subscribe(record_calls(self.audit.append))

    def _hear(self, event: Event) -> None:
        if isinstance(event, ToolCallEvent):
            self.told.append(event)
            self.early.append(not self._office.bench.ran)


@requirement("S-10")
@pytest.mark.parametrize("endpoint", ["agent", "hub by skill", "hub by agent", "workflow step"])
async def test_an_admitted_call_is_told_once_before_it_runs_and_audited_under_its_id(
    office: Office, endpoint: str
) -> None:
    """Exactly the keys of specification 5, doubt 13 (exchange 4-5)."""
    ears = Ears(office, office.served.events if endpoint == "agent" else office.hub.mesh.events)
    base = {"agent": office.served.url, "hub by agent": f"{office.hub.url}/agents/bench-agent"}
    skill: str = "create_plan"
    arguments: Any = PLAN
    if endpoint == "workflow step":
        skill, arguments = "orchestrate_workflow", {"workflow": STEP, "input": {}}
    await office.wire.call(base.get(endpoint, office.hub.url), skill, arguments, x_openstarry_trace_id="t")
    assert office.bench.ran == ["create_plan"]
    (event,) = [one for one in ears.told if one.tool == "create_plan"]
    row = event.as_json()
    assert list(row) == KEYS
    assert (row["type"], row["tool"], row["arguments"]) == ("EXEC:TOOL_CALL", "create_plan", PLAN)
    assert (row["trace_id"], row["depth"]) == ("t", 1 if endpoint == "workflow step" else 0)
    assert row["caller"] == "anonymous"
    assert ears.early[ears.told.index(event)]
    ended, told = [one for one in ears.audit.recent(10) if one["id"] == event.id]
    assert list(told) == [key for key in KEYS if key != "arguments"], "they may be secret"
    assert (ended["type"], ended["status"], ended["skill"]) == ("CALL:ENDED", "done", "create_plan")


@requirement("S-10")
@pytest.mark.parametrize(
    ("skill", "arguments", "headers", "error"),
    [
        ("nothing_such", {}, {}, "unknown_skill"),
        ("create_plan", {}, {}, "validation_error"),
        ("run_code", {"code": "1"}, {}, "not_authenticated"),
        ("create_plan", PLAN, {"x_openstarry_trace_depth": "6"}, "recursion_limit"),
    ],
)
async def test_a_call_that_is_not_let_in_is_audited_and_never_told_as_running(
    office: Office, skill: str, arguments: Any, headers: dict[str, str], error: str
) -> None:
    ears = Ears(office, office.served.events)
    await office.wire.call(office.served.url, skill, arguments, **headers)
    assert ears.told == []
    (row,) = ears.audit.recent(10)
    assert (row["status"], row["error"]) == ("refused", error)


async def test_the_audit_of_the_hub_outlives_the_call(office: Office) -> None:
    await office.wire.call(office.hub.url, "create_plan", PLAN)
    (row,) = [row for row in office.hub.audit.recent(10) if row.get("skill") == "create_plan"]
    assert (row["type"], row["status"], row["agent"]) == ("CALL:ENDED", "done", "bench-agent")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(otel, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


@requirement("S-13")
async def test_the_spans_of_a_chain_hang_together_from_process_to_process(
    exporter: InMemorySpanExporter, system: System, wire: Wire
) -> None:
    """From the client's own span down: agent, hub, agent, and through the steps of a workflow."""
    first, last = Agent("first-agent"), Agent("last-agent")

    @first.skill
    async def ask(ctx: Context) -> Any:
        steps = [{"id": "go", "skill": "answer"}]
        await ctx.call("orchestrate_workflow", {"workflow": {"name": "w", "steps": steps}, "input": {}})
        return await ctx.call("answer")

    @last.skill
    async def answer() -> str:
        return "yes"

    url = (await system.start_agent(first)).url
    await system.start_agent(last)
    await system.start_hub()
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    assert (await wire.call(url, "ask", traceparent=parent, baggage="tenant=blue")).result == "yes"
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    assert {format(span.context.trace_id, "032x") for span in spans.values()} == {"a" * 32}

    def above(span: ReadableSpan) -> list[str]:
        assert span.parent is not None
        parent = spans.get(span.parent.span_id)
        return [span.name, *(above(parent) if parent else [format(span.parent.span_id, "016x")])]

    chains = sorted(above(span) for span in spans.values() if span.name == "answer")
    hub = ["answer", "ask", "b" * 16], ["answer", "orchestrate_workflow", "ask", "b" * 16]
    # at the hub the call, and its attempt at the agent; at the agent the call
    assert chains == sorted(
        [*hub, *(["answer", *call] for call in hub), *(["answer", "answer", *call] for call in hub)]
    )
    kinds = {
        len(above(span)): span.kind
        for span in spans.values()
        if span.name == "answer" and above(span)[-3] != "orchestrate_workflow"
    }
    assert kinds == {3: SpanKind.SERVER, 4: SpanKind.CLIENT, 5: SpanKind.SERVER}
    sent = [one.headers for one in system.recording.to("last-agent")]
    assert {headers["baggage"] for headers in sent} == {"tenant=blue"}
