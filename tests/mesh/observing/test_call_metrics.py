"""The counts of calls: what the labels hold, and that nobody can make them grow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retinue.core.call import Outcome, Status
from retinue.core.errors import AgentUnreachableError, RetinueError, UnknownSkillError
from retinue.mesh.observing.call_figures import CallFigures
from retinue.mesh.observing.call_metrics import MAX_PAIRS, MAX_SERIES, CallMetrics
from retinue.mesh.observing.events import CallEndedEvent, now
from retinue.mesh.observing.metrics import LATENCY_BOUNDS_S, METRICS, OTHER, Figures, Histogram
from tests.mesh.scripted import make_call


def ended(
    agent: str | None,
    skill: str,
    *,
    error: RetinueError | None = None,
    duration_ms: float = 3.0,
    is_message: bool = False,
    usage: Any = None,
) -> CallEndedEvent:
    status: Status = "done" if error is None else "failed"
    outcome = Outcome("1", skill, status, agent=agent, duration_ms=duration_ms, error=error, usage=usage)
    return CallEndedEvent(make_call(skill), outcome, now(), is_message=is_message)


def read(metrics: CallMetrics) -> Figures:
    figures = Figures()
    metrics.read(figures)
    return figures


def test_calls_are_counted_by_agent_skill_endpoint_and_outcome() -> None:
    metrics = CallMetrics()
    unreachable = AgentUnreachableError("plan-agent", "http://x", "refused", sent=False)
    for event in (
        ended("plan-agent", "create_plan"),
        ended("plan-agent", "create_plan", duration_ms=300),
        ended("plan-agent", "create_plan", error=unreachable),
    ):
        metrics.observe(event)
    figures = read(metrics)
    assert figures.values["retinue_calls_total"] == {
        ("plan-agent", "create_plan", "execute", "done"): 2,
        ("plan-agent", "create_plan", "execute", "failed"): 1,
    }
    assert figures.values["retinue_call_errors_total"] == {("agent_unreachable",): 1}
    histogram = figures.histograms["retinue_call_duration_seconds"]["plan-agent", "create_plan"]
    assert dict(histogram.cumulate())["0.005"] == 2
    assert dict(histogram.cumulate())["+Inf"] == 3
    assert round(histogram.total, 3) == 0.306


def test_a_call_of_an_exam_counts_under_its_endpoint_and_in_no_duration_error_or_figure() -> None:
    metrics, figures_of_agents = CallMetrics(), CallFigures()
    unreachable = AgentUnreachableError("plan-agent", "http://x", "refused", sent=False)
    for event in (ended("plan-agent", "create_plan"), ended("plan-agent", "create_plan", error=unreachable)):
        exam = replace(event, call=replace(event.call, endpoint="exam"))
        metrics.observe(exam)
        figures_of_agents.observe(exam)
    figures = read(metrics)
    assert set(figures.values["retinue_calls_total"]) == {
        ("plan-agent", "create_plan", "exam", "done"),
        ("plan-agent", "create_plan", "exam", "failed"),
    }
    assert not figures.values["retinue_call_errors_total"]
    assert not figures.histograms["retinue_call_duration_seconds"]
    assert figures_of_agents.find("plan-agent").calls == 0


def test_names_that_a_caller_made_up_are_in_no_label() -> None:
    metrics = CallMetrics()
    for number in range(50):
        metrics.observe(ended(None, f"made-up-{number}", error=UnknownSkillError("x")))
        metrics.observe(ended("plan-agent", f"near-{number}", error=UnknownSkillError("x")))
        metrics.observe(ended("plan-agent", f"method/{number}", is_message=True))
    figures = read(metrics)
    assert figures.values["retinue_calls_total"] == {("", "", "execute", "failed"): 100}
    assert figures.values["retinue_messages_total"] == {("execute", "done"): 50}
    assert figures.histograms["retinue_call_duration_seconds"] == {}


def test_the_number_of_series_is_bounded_whoever_publishes_what() -> None:
    metrics = CallMetrics()
    for number in range(3 * MAX_SERIES):
        metrics.observe(ended(f"agent-{number}", f"skill-{number % 7}"))
    for number in range(3 * MAX_SERIES):
        metrics.observe(ended("agent-1", f"further-{number}"))
    figures = read(metrics)
    calls = figures.values["retinue_calls_total"]
    assert len(calls) <= MAX_SERIES + 10
    assert len(figures.histograms["retinue_call_duration_seconds"]) <= 2 * MAX_PAIRS
    assert sum(calls.values()) == 6 * MAX_SERIES, "every call is counted, under a name or as other"
    assert calls[OTHER, OTHER, "execute", "done"] > MAX_SERIES


@given(st.lists(st.floats(min_value=0, max_value=1e6, allow_nan=False), max_size=50))
def test_a_histogram_counts_each_value_once_at_the_first_bound_that_is_not_below_it(
    values: list[float],
) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    for (_, count), bound in zip(histogram.cumulate(), (*LATENCY_BOUNDS_S, float("inf")), strict=True):
        assert count == sum(value <= bound for value in values)


@given(
    st.one_of(
        st.none(), st.integers(), st.dictionaries(st.text(max_size=9), st.integers() | st.text() | st.none())
    )
)
def test_a_usage_of_any_form_does_not_stop_the_count(usage: Any) -> None:
    metrics = CallMetrics()
    metrics.observe(ended("claude", "ask", usage=usage))
    assert sum(read(metrics).values["retinue_calls_total"].values()) == 1


def test_tokens_and_cost_of_models_are_counted() -> None:
    metrics = CallMetrics()
    usage = {"model": "m", "input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}
    for _ in range(2):
        metrics.observe(ended("claude", "ask", usage=usage))
    metrics.observe(ended("claude", "ask", usage={"input_tokens": True, "cost_usd": float("nan")}))
    figures = read(metrics)
    assert figures.values["retinue_tokens_total"] == {("claude", "input"): 20, ("claude", "output"): 10}
    assert figures.values["retinue_cost_dollars_total"] == {("claude",): 0.5}


def test_tokens_of_further_calls_are_counted_where_they_were_spent_alone() -> None:
    metrics = CallMetrics()
    spent = {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}
    metrics.observe(ended("claude", "ask", usage=spent))
    metrics.observe(ended("helper", "solve", usage={**spent, "input_tokens": 12, "further": spent}))
    figures = read(metrics)
    assert sum(figures.values["retinue_tokens_total"].values()) == 17
    assert sum(figures.values["retinue_cost_dollars_total"].values()) == 0.25


def test_hidden_agents_are_counted_as_one_together_with_their_skills() -> None:
    metrics = CallMetrics()
    for agent in ("secret-agent", "secret-too", "plan-agent"):
        metrics.observe(ended(agent, f"{agent}-skill"))
    shown = read(metrics).hide(frozenset({"secret-agent", "secret-too"}))
    assert shown.values["retinue_calls_total"] == {
        (OTHER, OTHER, "execute", "done"): 2,
        ("plan-agent", "plan-agent-skill", "execute", "done"): 1,
    }
    histograms = shown.histograms["retinue_call_duration_seconds"]
    assert dict(histograms[OTHER, OTHER].cumulate())["+Inf"] == 2
    assert "secret" not in repr(shown.values)


def test_every_name_has_the_form_that_prometheus_wants() -> None:
    for name, metric in METRICS.items():
        assert name.startswith("retinue_")
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert metric.help, name
