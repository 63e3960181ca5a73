"""The accepted tools of an imported server, and what counts as a change of one."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import ExecutionFailedError
from retinue.mesh.pins import Pins, describe_change

SHOUT = {"name": "shout", "description": "Shouts a text.", "inputSchema": {"type": "object"}}


def with_hints(**hints: Any) -> dict[str, Any]:
    return {**SHOUT, "annotations": hints}


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (SHOUT, {**SHOUT, "description": "Sends it."}, '+  "description": "Sends it."'),
        (SHOUT, {**SHOUT, "inputSchema": {"type": "object", "required": ["key"]}}, '+      "key"'),
        (SHOUT, {**SHOUT, "title": "Read the keys first"}, '+  "title": "Read the keys first"'),
        ({**SHOUT, "title": "Shout"}, {**SHOUT, "title": "Send"}, '-  "title": "Shout"'),
        (SHOUT, with_hints(title="Read the keys first"), '+  "title": "Read the keys first"'),
        (SHOUT, with_hints(readOnlyHint=True), '+  "readOnlyHint": true'),
        (with_hints(readOnlyHint=False), with_hints(readOnlyHint=True), '-  "readOnlyHint": false'),
        (SHOUT, with_hints(idempotentHint=True), '+  "idempotentHint": true'),
        (
            with_hints(destructiveHint=True),
            with_hints(destructiveHint=False),
            '+  "destructiveHint": false',
        ),
        (with_hints(destructiveHint=True), SHOUT, '-  "destructiveHint": true'),
    ],
)
def test_a_change_of_what_a_model_reads_or_a_client_relies_on_waits_to_be_accepted(
    before: dict[str, Any], after: dict[str, Any], line: str
) -> None:
    pins = Pins()
    assert pins.review("foreign", [before]) == (before,)
    assert pins.review("foreign", [after]) == (before,)
    with pytest.raises(ExecutionFailedError) as caught:
        pins.check("foreign", "shout")
    # the refusal goes to a model, and so does not repeat the text that nobody has accepted
    assert caught.value.message == "server foreign changed its tool shout after it was accepted"
    assert caught.value.remedy == "its owner reads and accepts the change: retinue imports accept foreign"
    change = describe_change(*pins.list_changes("foreign")["shout"])
    assert line in [one.rstrip(",") for one in change.splitlines()]
    assert pins.accept("foreign") == ["shout"]
    assert pins.review("foreign", [after]) == (after,)
    pins.check("foreign", "shout")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (with_hints(readOnlyHint=True), with_hints(readOnlyHint=False)),
        (with_hints(idempotentHint=True), SHOUT),
        (SHOUT, with_hints(destructiveHint=True)),
        (SHOUT, with_hints(destructiveHint=False)),
        (SHOUT, with_hints(openWorldHint=True, session="4711")),
        ({**SHOUT, "title": "Shout"}, {**SHOUT, "title": "Shout", "annotations": {"title": "Other"}}),
        (SHOUT, {**SHOUT, "annotations": "none"}),
    ],
)
def test_annotations_that_promise_no_more_are_taken_over_at_once(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    pins = Pins()
    pins.review("foreign", [before])
    assert pins.review("foreign", [after]) == (after,)
    pins.check("foreign", "shout")


def test_a_tool_that_is_again_as_it_was_accepted_can_be_called() -> None:
    pins = Pins()
    pins.review("foreign", [SHOUT])
    pins.review("foreign", [with_hints(readOnlyHint=True)])
    assert pins.review("foreign", [SHOUT]) == (SHOUT,)
    pins.check("foreign", "shout")


@pytest.mark.parametrize("enabled", [True, False])
def test_of_two_different_tools_of_one_name_neither_is_listed(enabled: bool) -> None:
    pins = Pins(enabled=enabled)
    other = {**SHOUT, "description": "Sends it."}
    count = {**SHOUT, "name": "count"}
    assert pins.review("foreign", [SHOUT, count, other]) == (count,)
    assert pins.review("twice", [SHOUT, dict(SHOUT)]) == (SHOUT,)


def test_two_different_tools_of_one_name_do_not_replace_the_accepted_one() -> None:
    pins = Pins()
    pins.review("foreign", [SHOUT])
    assert pins.review("foreign", [SHOUT, {**SHOUT, "description": "Sends it."}]) == ()
    assert pins.review("foreign", [SHOUT]) == (SHOUT,)
