"""The key ``on`` of a workflow."""

from __future__ import annotations

import pytest

from retinue.core.errors import DefinitionError
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.definitions.starts import OnAgent, OnMessage, OnWebhook, Triggers

STEPS = "steps:\n- {id: a, skill: s}\n"


def load_on(text: str) -> Triggers:
    on = load_definition(f"name: w\non: {text}\n{STEPS}").on
    assert on is not None
    return on


@pytest.mark.parametrize("text", ["webhook", "{webhook: {}}", "{webhook: true}", "{webhook: }"])
def test_the_name_of_an_event_is_enough(text: str) -> None:
    assert load_on(text) == Triggers(webhook=OnWebhook())


def test_a_webhook_has_limits_and_an_input() -> None:
    webhook = load_on("{webhook: {per_minute: 5, max_bytes: 1000, input: {n: 1}}}").webhook
    assert webhook == OnWebhook(per_minute=5, max_bytes=1000, input={"n": 1})


def test_a_message_and_an_agent_are_described_by_globs() -> None:
    on = load_on("{message: {performative: [TASK_REQUEST, PROPOSE], topic: 'b*'}, agent: {event: left}}")
    assert on.kinds == ("message", "agent")
    assert on.message == OnMessage(performative=("TASK_REQUEST", "PROPOSE"), topic="b*")
    assert on.agent == OnAgent(event=("left",))
    assert load_on("message").message == OnMessage()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{agent: {}}", "'event' is missing"),
        ("{agent: {event: died}}", "'joined', 'left', 'unreachable' or 'healthy'"),
        ("{agent: {event: left, nane: x}}", "did you mean name"),
        ("{message: {performative: request}}", "on.message.performative"),
        ("{message: {topik: x}}", "did you mean topic"),
        ("{}", "at least one of webhook"),
        ("telephone", "unknown key 'telephone'"),
        ("{webhok: {}}", "did you mean webhook"),
        ("{webhook: {rate: 5}}", "unknown key 'rate'"),
        ("{webhook: {per_minute: 0}}", "greater than or equal to 1"),
        ("{webhook: {max_bytes: 5000000}}", "less than or equal to 4194304"),
        ("{webhook: 7}", "on.webhook"),
        ("[webhook]", "on"),
        ('{webhook: {input: {a: "${{ input. }}"}}}', "on.webhook.input.a"),
        ('{webhook: {input: "${{ steps.a.output }}"}}', "has not run when this is read"),
        ('{webhook: {input: "${{ event.id }}"}}', "nothing is named event"),
    ],
)
def test_a_wrong_trigger_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_on(text)
    assert problem in f"{caught.value} {caught.value.remedy}"
    assert caught.value.line == 2


def test_the_stored_form_can_be_read_again() -> None:
    definition = load_definition(f"name: w\non: webhook\n{STEPS}")
    assert Definition.from_json(definition.to_json()) == definition
