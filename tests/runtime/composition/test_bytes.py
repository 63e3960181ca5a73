"""What a hub, an agent and a worker show, byte for byte: cards, lists of tools, routes and names of metrics.

The order in these bytes comes from the order in which a process is composed: the order of skills on a card,
of tools in a list, and of routes, of which the first that fits answers.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.parts.process import Echo
from retinue.runtime.agent_process import ServeOptions, serve_agent
from retinue.runtime.hub_process import HubOptions, run_hub
from retinue.runtime.launch import Address
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.loading.targets import Target
from retinue.runtime.worker_process import run_worker
from retinue.settings import Settings, settings_class
from retinue.settings_tables import HubTable
from retinue.storage.state import State
from retinue_koi.table import KoiTable
from tests.runtime.composition.golden import check_golden
from tests.runtime.composition.live_process import LiveProcess, ProcessStarter
from tests.system import Wire

HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
NOBODY = "http://127.0.0.1:9/koi-net"
CARD = "/.well-known/agent-card.json"


def make_agent() -> Agent:
    """Skills of each visibility, prompts and resources, declared in no order of the alphabet."""
    agent = Agent("shown-agent", version="2.1.0", description="Shows what a card can hold.")

    @agent.skill(expose=True, tags=["text"], examples=["Turn this around."])
    async def turn(text: str) -> dict[str, str]:
        """Turns a text around."""
        return {"text": text[::-1]}

    @agent.skill
    async def among_agents(count: int = 1) -> int:
        """Seen by the mesh only."""
        return count

    @agent.skill("fs:read", expose=True, read_only=True, idempotent=True)
    async def read(path: str, limit: int | None = None) -> list[str]:
        """Reads lines."""
        return [path][:limit]

    @agent.skill(private=True)
    async def alone() -> None:
        """Seen by nobody."""

    @agent.skill(expose=True, runs_code=True)
    async def evaluate(code: str) -> str:
        """Runs code."""
        return code

    @agent.prompt(expose=True, title="Write a letter")
    async def write_letter(to: str, tone: str = "plain") -> str:
        """Asks for a letter."""
        return f"Write to {to}, {tone}."

    @agent.prompt(expose=True)
    async def ask() -> str:
        """Asks."""
        return "Why?"

    @agent.resource("notes://today", expose=True)
    async def today() -> str:
        """The notes of today."""
        return "none"

    @agent.resource("notes://{day}", expose=True)
    async def of_day(day: str) -> str:
        """The notes of a day."""
        return day

    return agent


@dataclass(frozen=True, slots=True)
class Shown:
    """The processes of one state, and a client that has the token of the state."""

    hub: LiveProcess
    agent: LiveProcess
    worker: LiveProcess
    wire: Wire
    token: str

    async def read(self, url: str) -> str:
        """The body of a GET, as text without what varies."""
        reply = await self.wire.get(url, authorization=self.token)
        assert reply.status == 200, reply
        return self.mask(reply.body.decode())

    async def list_tools(self, base: str, era: str) -> str:
        """The result of ``tools/list``, as text without what varies."""
        headers = {
            "authorization": self.token,
            "accept": "application/json, text/event-stream",
            "mcp_protocol_version": era,
        }
        params: dict[str, Any] = {}
        if era == MODERN:
            headers["mcp_method"] = "tools/list"
            client = {"name": "golden", "version": "1"}
            params["_meta"] = {
                f"{META}protocolVersion": MODERN,
                f"{META}clientCapabilities": {},
                f"{META}clientInfo": client,
            }
        else:
            headers["mcp_session_id"] = await self._open_session(base, headers)
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
        reply = await self.wire.post(f"{base}/mcp", request, **headers)
        return self.mask(_message(reply.body).decode())

    async def _open_session(self, base: str, headers: dict[str, str]) -> str:
        begin = {
            "protocolVersion": HANDSHAKE,
            "capabilities": {},
            "clientInfo": {"name": "golden", "version": "1"},
        }
        request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin}
        reply = await self.wire.post(f"{base}/mcp", request, **headers)
        session = reply.headers["mcp-session-id"]
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        reply = await self.wire.post(f"{base}/mcp", told, **headers, mcp_session_id=session)
        assert reply.status == 202, reply
        return session

    def mask(self, text: str) -> str:
        """``text`` without ports, the version of Retinue and signatures."""
        text = text.replace(self.hub.url, "http://hub").replace(self.agent.url, "http://agent")
        text = text.replace(f'"version":"{version("retinue")}"', '"version":"VERSION"')
        return re.sub(r'"(protected|signature)":"[^"]+"', r'"\1":"MASKED"', text)


def _message(body: bytes) -> bytes:
    """The message in a body, or in the last event of a stream."""
    events = [line.removeprefix(b"data:").strip() for line in body.splitlines() if line.startswith(b"data:")]
    return events[-1] if events else body


def _lines(text: str) -> str:
    """Compact JSON as lines, so that a person sees what differs; nothing else about it is lost."""
    value = orjson.loads(text)
    assert orjson.dumps(value).decode() == text, "the body is not compact JSON"
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n"


def _families(text: str) -> str:
    """Name and type of each family of ``/metrics``."""
    return "".join(f"{line.removeprefix('# TYPE ')}\n" for line in text.splitlines() if "# TYPE" in line)


@pytest.fixture
async def shown(retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire) -> AsyncIterator[Shown]:
    """An agent, a hub that lists it and a worker, each ready; on the agent one call was made."""

    async def launch(runs: LazyRuns, echo: Echo, **options: bool) -> None:
        """The database answers at once."""

    monkeypatch.setattr(LazyRuns, "launch", launch)
    state, starter = State(retinue_home), ProcessStarter(monkeypatch)
    async with AsyncExitStack() as stack:
        serve = ServeOptions()
        hub_settings, member_settings = (
            settings_class()(koi=table, hub=HubTable(models=()))
            for table in (KoiTable(join=NOBODY), KoiTable(member_join=NOBODY))
        )
        agent = await stack.enter_async_context(
            starter.running(
                lambda echo: serve_agent(
                    Target(make_agent(), ()),
                    serve,
                    member_settings,
                    state,
                    echo,
                )
            )
        )
        options = HubOptions(Address(), bare=True)
        hub = await stack.enter_async_context(
            starter.running(lambda echo: run_hub(options, hub_settings, state, echo))
        )
        worker = await stack.enter_async_context(
            starter.running(lambda echo: run_worker(Address(), Settings(), state, echo))
        )
        token = f"Bearer {state.local_token()}"
        await wire.call(hub.url, "turn", {"text": "abc"}, authorization=token)
        yield Shown(hub, agent, worker, wire, token)


async def test_what_hub_agent_and_worker_show(shown: Shown) -> None:
    hub, agent, worker = shown.hub, shown.agent, shown.worker
    bases = {"hub": hub.url, "agent": agent.url, "agent-at-hub": f"{hub.url}/agents/shown-agent"}
    for name, base in bases.items():
        check_golden(f"card-{name}.json", _lines(await shown.read(f"{base}/agent-card")))
        check_golden(f"a2a-card-{name}.json", _lines(await shown.read(f"{base}{CARD}")))
        check_golden(f"tools-{name}.json", _lines(await shown.list_tools(base, HANDSHAKE)))
        check_golden(f"tools-{name}-modern.json", _lines(await shown.list_tools(base, MODERN)))
    for name, process in {"hub": hub, "agent": agent, "worker": worker}.items():
        check_golden(f"routes-{name}.txt", "\n".join(process.list_routes()) + "\n")
        check_golden(f"metrics-{name}.txt", _families(await shown.read(f"{process.url}/metrics")))
