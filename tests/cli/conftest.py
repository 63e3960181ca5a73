"""Commands run in this process, and the cards that they find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from retinue.cli.program import program
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_card
from retinue.storage.state import State

PLAN_CARD = {
    "name": "plan-agent",
    "url": "http://127.0.0.1:1",
    "version": "1.2.0",
    "description": "Plans things",
    "skills": [
        {
            "id": "create_plan",
            "description": "Creates plans from requirements",
            "input_schema": {
                "type": "object",
                "properties": {"requirements": {"type": "string"}, "rounds": {"type": "integer"}},
                "required": ["requirements"],
            },
        },
        {"id": "read_docs", "description": "Reads documentation"},
    ],
}

Retinue = Callable[..., Result]


@pytest.fixture
def retinue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Retinue:
    """Run one command as a person would, in an empty folder; gives click's result."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    runner = CliRunner()

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        result = runner.invoke(program, arguments, input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def plan_card(retinue_home: Path) -> bytes:
    """A published card of an agent that does not run; its bytes."""
    card = orjson.dumps(PLAN_CARD)
    publish(retinue_home, "plan-agent", card, ("create_plan", "read_docs"))
    return card


def publish(home: Path, name: str, card: bytes, skills: tuple[str, ...] = (), **options: Any) -> None:
    """Put a card into the registry of a state folder."""
    State(home).prepare()
    created = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    registry = LayoutRegistry(State(home).registry)
    asyncio.run(publish_card(registry, name, card, version=None, skills=skills, created=created, **options))
