"""Unsafe schemas, refused wherever an agent is made known: nobody is to meet one in a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.core.errors import SchemaRefusedError
from retinue.core.record import Skill
from retinue.runtime.loading.publishables import read_target
from tests.requirements import requirement
from tests.system import System, Wire, publish

REMOTE = {"type": "object", "properties": {"a": {"$ref": "https://evil.example/schema.json"}}}
FILE = {"$ref": "file:///etc/passwd"}
EXPLOSIVE = {
    "$defs": {
        **{
            f"n{level}": {"anyOf": [{"$ref": f"#/$defs/n{level + 1}"}, {"$ref": f"#/$defs/n{level + 1}"}]}
            for level in range(30)
        },
        "n30": {"type": "string"},
    },
    "$ref": "#/$defs/n0",
}
UNSAFE = pytest.mark.parametrize(
    "schema", [REMOTE, FILE, EXPLOSIVE], ids=["remote $ref", "$ref to a file", "explosive branches"]
)


def _card(schema: Any, name: str = "bad-agent") -> bytes:
    skill = {"id": "bad_skill", "description": "", "input_schema": schema}
    return orjson.dumps({"name": name, "url": "http://127.0.0.1:9", "skills": [skill]})


@requirement("P-13")
@UNSAFE
@pytest.mark.parametrize("side", ["input_schema", "output_schema"])
def test_an_agent_in_python_cannot_declare_it(schema: Any, side: str) -> None:
    """At the place where its author reads the message."""
    with pytest.raises(SchemaRefusedError, match=r"bad_skill"):
        Agent("bad-agent").declare(Skill("bad_skill", **{side: schema}))


@UNSAFE
def test_a_card_with_it_is_not_published(tmp_path: Path, schema: Any) -> None:
    """``retinue publish card.json``."""
    file = tmp_path / "card.json"
    file.write_bytes(_card(schema))
    with pytest.raises(SchemaRefusedError, match=r"input of bad_skill"):
        read_target(str(file))


@UNSAFE
async def test_a_hub_lists_it_as_missing_with_the_reason(system: System, wire: Wire, schema: Any) -> None:
    """A card that another program pushed; the agents beside it stay."""
    await publish(system.home, _card(schema))
    await publish(system.home, _card({"type": "object"}, "good-agent"))
    hub = await system.start_hub()
    listed = (await wire.call(hub.url, "list_agents")).result
    assert [row["name"] for row in listed["agents"]] == ["good-agent"]
    (missing,) = listed["missing"]
    assert (missing["source"], missing["key"]) == ("home", "agents/bad")
    assert "schema of input of bad_skill refused" in missing["error"]
    named = await wire.call(f"{hub.url}/agents/bad-agent", "bad_skill")
    assert named.error["message"] == "Unknown agent: bad-agent"
