"""An agent of the SDK of A2A behind a hub, in real processes: imported, found, called, removed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.utils.signing import create_signature_verifier
from jwt.api_jwk import PyJWK
from mcp import Client

from tests.ports import reserve_port
from tests.processes.commands import retinue, run_command
from tests.processes.inside import inside
from tests.processes.running import is_free, wait_until

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def foreign_agent(version: str) -> Iterator[str]:
    port = reserve_port()
    command = [sys.executable, "-m", "tests.a2a.foreign_agent", str(port), version]
    agent = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: not is_free(port), "the agent listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        agent.terminate()
        agent.wait(60)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_an_imported_agent_is_called_by_every_client_of_the_hub(
    version: str, tmp_path: Path, port: int
) -> None:
    def run(*arguments: str) -> str:
        return retinue(*arguments, cwd=ROOT, environment={"HOME": str(tmp_path)})

    with foreign_agent(version) as peer, inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("0 agents")
        imported = run("import", "a2a", peer, "--name", "peer")
        assert imported.startswith("peer: 11 skills: say, count, mixed"), imported
        assert orjson.loads(run("call", "say", '{"prompt": "hi"}')) == "HI"
        assert orjson.loads(run("call", "count", '{"prompt": "abc"}')) == {"letters": 3, "ratio": 0.5}
        hits = orjson.loads(run("find", "three steps", "--json"))
        assert hits["skills"][0]["skill"] == "slow"
        async with Client(f"{url}/mcp") as client:
            result = await client.call_tool("peer__say", {"prompt": "over mcp"})
            assert [getattr(block, "text", None) for block in result.content] == ["OVER MCP"]
        assert "peer" in run("imports")
        run("imports", "remove", "peer")
        assert "no imports" in run("imports")


AGENT = '''
from retinue import Agent, Context

agent = Agent("greeter", version="1.0.0")


@agent.skill(expose=True)
async def greet(ctx: Context, name: str, times: int = 1) -> dict[str, str]:
    """Greets somebody."""
    await ctx.progress(0.5, "thinking")
    return {"text": f"Hello, {name}!" * times}


@agent.skill(expose=True)
async def ask(ctx: Context) -> str:
    """Asks for a name."""
    return f"Hello, {await ctx.elicit('Who are you?', str)}!"
'''


async def test_an_agent_of_ours_is_imported_over_a2a_with_its_schemas_and_its_signature(
    tmp_path: Path, port: int
) -> None:
    """Two states: the publisher's, and the one that trusts its key."""
    here, there = tmp_path / "here", tmp_path / "there"
    for home in (here, there):
        home.mkdir()
    (there / "greeter.py").write_text(AGENT)

    def state_of(home: Path) -> dict[str, str]:
        return {"RETINUE_HOME": str(home / "state"), "RETINUE_SIGNATURES__POLICY": "require"}

    def run(home: Path, *arguments: str) -> str:
        return retinue(*arguments, cwd=ROOT, environment=state_of(home))

    with (
        inside("serve", "greeter.py", cwd=there, environment=state_of(there)) as served,
        inside("hub", "--bare", "--port", str(port), cwd=here, environment=state_of(here)) as hub,
    ):
        peer = served.url_in("greeter 1.0.0 at")
        hub.wait_for("0 agents")
        refused = run_command(
            "import", "a2a", peer, "--name", "greeter", cwd=ROOT, environment=state_of(here)
        )
        assert refused.returncode == 7
        assert "which is not trusted" in refused.stderr
        run(here, "imports", "remove", "greeter")
        wait_until(lambda: "greeter" not in run(here, "agents"), "the hub has dropped it")
        run(here, "keys", "trust", "publisher", f"{peer}/.well-known/jwks.json")
        assert run(here, "import", "a2a", peer, "--name", "greeter").startswith(
            "greeter: 2 skills: greet, ask"
        )
        greeting = run(here, "call", "greet", '{"name": "Ada", "times": 2}')
        assert orjson.loads(greeting) == {"text": "Hello, Ada!Hello, Ada!"}
        listed = orjson.loads(run(here, "agents", "--json"))["agents"]
        assert [row.get("signature") for row in listed if row["name"] == "greeter"] == ["valid"]
        card = await asyncio.to_thread(_read_json, f"{peer}/.well-known/agent-card.json")
        keys = await asyncio.to_thread(_read_json, f"{peer}/.well-known/jwks.json")
        verify = create_signature_verifier(lambda kid, jku: PyJWK.from_dict(keys["keys"][0]), ["ES256"])
        verify(parse_agent_card(card))


def _read_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=120) as reply:
        return orjson.loads(reply.read())
