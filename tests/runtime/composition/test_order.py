"""The order in which each kind of process opens, serves, runs, is ready and ends, as a list in a file.

Some of these orders are necessary: the hub file comes before the imports, because a hub recognises itself by
it; streams end before the server waits for them; runs leave before the agents stop. A seam that was renamed
is one line in the table below.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.parts.lazy import Lazy
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
from tests.runtime.composition.live_process import Main, ProcessStarter
from tests.runtime.composition.recorder import Recorder, Seam

NOBODY = "http://127.0.0.1:9/koi-net"
"""The address of a KOI node that is not there."""

LAZY = {
    "retinue.mcp.server.lazy_server:lazy_server": "MCP",
    "retinue.runtime.endpoints.a2a:_open_service": "A2A",
    "retinue.runtime.messages:LazyMessageInvoker": "client of messages",
    "retinue.runtime.messages:Messages": "receiver of messages",
    "retinue.runtime.lazy_runs:LazyRuns": "durable runs",
}
"""What a value that is made at its first use is, by the class or outer function that makes it."""


def name_lazy(lazy: Lazy[Any]) -> str:
    """The protocol of a value that is made at its first use."""
    maker = f"{lazy._make.__module__}:{lazy._make.__qualname__.partition('.')[0]}"
    return LAZY.get(maker, maker)


SHARED = (
    Seam("retinue.storage.state:State.protect", "state taken from other users"),
    Seam("retinue.runtime.serving:_listen", "port bound"),
    Seam("retinue.runtime.serving:Stop.on_signals", "signals and supervisor watched"),
    Seam("retinue.web.http_client:HttpClient.__aenter__", "http opened", main=True),
    Seam("retinue.web.http_client:HttpClient.__aexit__", "http closed", main=True),
    Seam("retinue.mesh.directory.directory:Directory.__init__", "directory made"),
    Seam("retinue.mesh.directory.directory:Directory.ensure_fresh", "directory read", main=True),
    Seam("retinue.mesh.directory.directory:Directory.aclose", "directory closed"),
    Seam("retinue.mesh.observing.events:EventBus.flush", "events flushed", main=True),
    Seam(
        "retinue.runtime.observing.process_state:ProcessState.exporting",
        "metrics exported",
        "metrics not exported",
    ),
    Seam("uvicorn:Server.startup", "server opens"),
    Seam("uvicorn:Server.shutdown", "server closes", "server closed"),
    Seam("gc:freeze", "objects frozen"),
    Seam("retinue.runtime.messages:Messages.recover", "accepted messages taken up"),
    Seam("retinue.runtime.messages:Messages.aclose", "messages closed"),
    Seam("retinue.parts.lazy:Lazy.__init__", "{} prepared", of=name_lazy),
    Seam("retinue.parts.lazy:Lazy.end", "{} streams ended", of=name_lazy),
    Seam("retinue.parts.lazy:Lazy.aclose", "{} closes", "{} closed", of=name_lazy),
)
MESH = (
    Seam("retinue.storage.runs_file:RunsFile.check", "runs checked"),
    Seam("retinue.oci.server.webhooks:Notifications.aclose", "notifications closed"),
    Seam("retinue.mesh.search.ranking:SkillSearch.synchronize", "search index synchronised"),
    Seam("retinue.runtime.lazy_runs:LazyRuns.open", "runs opened", "runs closed"),
    Seam("retinue.runtime.lazy_runs:LazyRuns.launch", "runs launch", "runs launch no more"),
    Seam("retinue.runtime.parts.upkeep:BackgroundTasks.run", "upkeep runs", "upkeep ended"),
)
HUB = (
    Seam("retinue.storage.state:State.own", "state locked", "state unlocked"),
    Seam("retinue.storage.state:State.write_hub", "hub file written", shows="ready"),
    Seam("retinue.storage.state:State.forget_hub", "hub file removed"),
    Seam("retinue.storage.listing_store:SqliteListings.__init__", "listings opened"),
    Seam("retinue.storage.listing_store:SqliteListings.close", "listings closed"),
    Seam("retinue.storage.audit_store:SqliteAudit.__init__", "audit opened"),
    Seam("retinue.storage.audit_store:SqliteAudit.close", "audit closed"),
    Seam("retinue.storage.skill_index:SqliteTextIndex.__init__", "texts opened"),
    Seam("retinue.storage.skill_index:SqliteTextIndex.close", "texts closed"),
    Seam("retinue.mesh.observing.call_figures:CallFigures.seed", "figures seeded"),
    Seam("retinue.dashboard.live:LiveUpdates.__init__", "dashboard made"),
    Seam("retinue.dashboard.live:LiveUpdates.end", "dashboard streams ended"),
    Seam("retinue.runtime.imports.connections:Imports.running", "imports connected", "imports closed"),
    Seam("retinue_koi.membership:KoiHub.open", "KOI node opened"),
    Seam("retinue_koi.membership:KoiHub.running", "KOI network joined", "KOI network left"),
    Seam("retinue.runtime.observing.log_files:AgentLogs.__init__", "logs of agents opened"),
    Seam("retinue.runtime.observing.log_files:AgentLogs.close", "logs of agents closed"),
    Seam("retinue.runtime.supervisor:Supervisor.start", "agents start", "agents started"),
    Seam("retinue.runtime.supervisor:Supervisor.stop", "agents stop", "agents stopped"),
    Seam("retinue.runtime.parts.children:probe", "agents probed"),
    Seam("retinue.runtime.lazy_runs:LazyRuns.leave", "runs leave"),
)
AGENT = (
    Seam("retinue.runtime.joined_mesh:JoinedMesh.__init__", "mesh joined"),
    Seam("retinue_koi.membership:KoiMember.__init__", "KOI node opened"),
    Seam("retinue_koi.membership:KoiMember.running", "KOI network joined", "KOI network left"),
    Seam("retinue.runtime.card_publication:CardPublication.publish", "card publishes", "card published"),
    Seam("retinue.runtime.card_publication:CardPublication.keep", "card kept", "card kept no more"),
    Seam("retinue.runtime.card_publication:CardPublication.withdraw", "card withdraws", "card withdrawn"),
    Seam("retinue.runtime.parts.agent_publication:notify_hub", "hub notified", main=True),
    Seam("retinue.runtime.loading.reloading:_watch", "exposure lists watched", "exposure lists not watched"),
)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    yield Recorder()
    gc.unfreeze()


async def record_order(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, state: State, main: Main, seams: Sequence[Seam]
) -> str:
    """The steps of a process that starts, is ready and is asked to stop, a step a line."""

    def note_line(line: str) -> None:
        line = re.sub(r":\d+\b", ":PORT", line.replace(str(state.root), "STATE"))
        line = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", line)
        recorder.note(f'prints "{line}"')

    async def run(echo: Echo) -> int:
        recorder.main = asyncio.current_task()
        return await main(echo)

    starter = ProcessStarter(monkeypatch)
    recorder.watch(monkeypatch, seams)
    async with starter.running(run, on_line=note_line):
        recorder.note("is ready")
    recorder.note("has ended")
    return "\n".join(recorder.steps) + "\n"


async def test_the_order_of_a_hub(
    recorder: Recorder, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, options = State(retinue_home), HubOptions(Address(), bare=True, next_step="now call")
    settings = settings_class()(koi=KoiTable(join=NOBODY), hub=HubTable(models=()))
    order = await record_order(
        recorder,
        monkeypatch,
        state,
        lambda echo: run_hub(options, settings, state, echo),
        (*SHARED, *MESH, *HUB),
    )
    check_golden("order-hub.txt", order)


async def test_the_order_of_an_agent(
    recorder: Recorder, retinue_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = tmp_path / "agent.json"
    lists.write_text('{"name": "ordered", "version": "1.0.0", "mcp": {"expose_tools": []}}')
    state, options = State(retinue_home), ServeOptions()
    settings = settings_class()(koi=KoiTable(member_join=NOBODY))
    target = Target(Agent("ordered", version="1.0.0"), (), lists_file=lists)
    order = await record_order(
        recorder,
        monkeypatch,
        state,
        lambda echo: serve_agent(target, options, settings, state, echo),
        (*SHARED, *AGENT),
    )
    check_golden("order-agent.txt", order)


async def test_the_order_of_a_worker(
    recorder: Recorder, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def launch(runs: LazyRuns, echo: Echo, **options: bool) -> None:
        """The database answers at once; what runs do with it is the subject of other tests."""

    monkeypatch.setattr(LazyRuns, "launch", launch)
    state = State(retinue_home)
    order = await record_order(
        recorder,
        monkeypatch,
        state,
        lambda echo: run_worker(Address(), Settings(), state, echo),
        (*SHARED, *MESH, *HUB),
    )
    check_golden("order-worker.txt", order)
