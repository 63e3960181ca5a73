"""The history of a session, and the argument that names one."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.session_field import SESSION_SCHEMA, fill_session
from retinue.thinking.session import MAX_HISTORY_BYTES, MAX_TEXT_BYTES, History, session_key


def test_a_history_is_read_as_it_was_written() -> None:
    history = History(summary="s").with_exchange("r1", "a", "b").with_exchange("r2", "c", "d")
    assert History.from_json(history.to_json()) == history
    assert not History.from_json(None)


def test_an_answer_of_a_known_run_replaces_the_one_before() -> None:
    history = History().with_exchange("r1", "a", "half").with_exchange("r2", "c", "d")
    exchanges = history.with_exchange("r1", "a", "whole").exchanges
    assert [(exchange.run, exchange.answer) for exchange in exchanges] == [("r1", "whole"), ("r2", "d")]


def test_long_texts_are_cut_and_the_oldest_exchanges_go_first() -> None:
    history = History()
    for number in range(10):
        history = history.with_exchange(f"r{number}", f"{number}", "ä" * 10_000)
    assert history.size_bytes <= MAX_HISTORY_BYTES
    assert [exchange.prompt for exchange in history.exchanges] == ["7", "8", "9"]
    assert all(exchange.size_bytes < MAX_TEXT_BYTES + 100 for exchange in history.exchanges)
    assert "[cut: 20,000 bytes in all]" in history.exchanges[0].answer


def test_each_caller_each_right_and_each_step_has_its_own_sessions() -> None:
    keys = {
        session_key(rights, place, session)
        for rights in (["ann"], ["bob"], ["ann", "mesh"])
        for place in (["w", "research"], ["w", "other"])
        for session in ("s", "t")
    }
    assert len(keys) == 12


SCHEMA = {"type": "object", "properties": {"prompt": {"type": "string"}, "talk": SESSION_SCHEMA}}


@pytest.mark.parametrize(
    ("arguments", "schema", "session", "filled"),
    [
        ({"prompt": "x"}, SCHEMA, "s", {"prompt": "x", "talk": "s"}),
        ({"talk": "own"}, SCHEMA, "s", {"talk": "own"}),
        ({}, SCHEMA, "x" * 300, {"talk": "x" * 200}),
        ({}, SCHEMA, None, {}),
        ({}, {"properties": {"session": {"type": "string"}}}, "s", {}),
        ({}, None, "s", {}),
        ({}, {"properties": [1]}, "s", {}),
        ("text", SCHEMA, "s", "text"),
    ],
)
def test_the_session_is_filled_in_where_a_schema_declares_it(
    arguments: Any, schema: Any, session: str | None, filled: Any
) -> None:
    assert fill_session(arguments, schema, session) == filled
