"""The hub's process: its options, its core, and the list of its parts."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from retinue.core.record import HUB_NAME
from retinue.dashboard.team_pages import KnownTeams
from retinue.hub.mesh_map import MeshParts
from retinue.parts.installed import list_parts_of
from retinue.parts.network_links import NetworkLinks
from retinue.parts.part import Part
from retinue.parts.process import Echo, Process
from retinue.runtime.access import hub_access
from retinue.runtime.launch import Address, Core, Launch, ProcessIdentity, SettingsSource, Start
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.many_hubs.part import ManyHubsPart
from retinue.runtime.mesh import Chains, open_mesh
from retinue.runtime.models import spending_reader
from retinue.runtime.parts.artifacts import ArtifactsPart
from retinue.runtime.parts.audit import AuditPart
from retinue.runtime.parts.calls import CallsPart
from retinue.runtime.parts.children import LogsPart, ModelsPart, SupervisorPart
from retinue.runtime.parts.finding.exam import ExamPart
from retinue.runtime.parts.finding.history import HistoryPart
from retinue.runtime.parts.finding.receipts import ReceiptsPart
from retinue.runtime.parts.hub_moments import FirstReadingPart, FolderWatchPart, HubFilePart, HubLinesPart
from retinue.runtime.parts.hub_protocols import DashboardPart, DiscoveryPart, HubMcpPart, RegistryPart
from retinue.runtime.parts.imports import ImportsPart
from retinue.runtime.parts.messages import MessagesPart
from retinue.runtime.parts.policies import PoliciesPart
from retinue.runtime.parts.protocols import (
    A2aPart,
    CardPart,
    ExecutePart,
    OpenApiPart,
    ProbesPart,
    RestPart,
)
from retinue.runtime.parts.runs import ApprovalsPart, RunsPart
from retinue.runtime.parts.schedules import SchedulesPart
from retinue.runtime.parts.storage import StoragePart
from retinue.runtime.parts.teams.rollouts import RolloutsPart
from retinue.runtime.parts.upkeep import MeshMapPart, UpkeepPart
from retinue.runtime.parts.workflow_hints import WorkflowHintsPart
from retinue.runtime.run_process import own_state, run_process
from retinue.settings import Settings
from retinue.storage.audit_store import SqliteAudit
from retinue.storage.listing_store import SqliteListings
from retinue.storage.run_store import RunStore
from retinue.storage.skill_index import SqliteTextIndex
from retinue.storage.state import State

ADDRESS = Address(port=9000)
"""Where a hub listens without options."""


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How a hub runs; ``next_step`` is printed once its agents have started."""

    address: Address = ADDRESS
    bare: bool = False
    next_step: str | None = None


async def run_hub(
    options: HubOptions,
    settings: Settings,
    state: State,
    echo: Echo,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Run until asked to stop; returns the exit code. At SIGHUP it reads its settings again with ``reread``.

    An agent that does not start is reported and retried; it does not stop the hub. Raises
    HubRunningError, PortInUseError, StateDamagedError.
    """
    return await run_process(
        Launch(
            identity=ProcessIdentity("hub", "hub", HUB_NAME),
            source=SettingsSource(settings, reread),
            state=state,
            echo=echo,
            core=Core(hold_state=partial(own_state, state, echo), open=open_hub, access_of=hub_access),
            parts=hub_parts(options, settings),
            address=replace(options.address, tells_port=True),
        )
    )


def make_hub_id() -> str:
    """The name of a hub in the traces that pass it."""
    return f"hub-{uuid.uuid4().hex[:12]}"


def hub_parts(options: HubOptions, settings: Settings) -> Sequence[Part]:
    """The parts of a hub, in the order in which they run unless their needs say otherwise."""
    bare = options.bare or settings.hub.bare
    return [
        PoliciesPart(),
        HubFilePart(),
        ImportsPart(),
        ModelsPart(bare=bare),
        FirstReadingPart(),
        AuditPart(),
        HistoryPart(),
        ExamPart(),
        ReceiptsPart(),
        MeshMapPart(),
        MessagesPart(),
        HubMcpPart(),
        A2aPart(),
        ExecutePart(),
        CardPart(),
        RestPart(),
        OpenApiPart(),
        ProbesPart(),
        StoragePart(),
        DiscoveryPart(),
        RegistryPart(),
        ArtifactsPart(),
        *list_parts_of("hub", settings.parts.off),
        DashboardPart(_find_teams),
        UpkeepPart(),
        ManyHubsPart(),
        FolderWatchPart(),
        HubLinesPart(options.next_step),
        LogsPart(),
        RolloutsPart(leads=True),
        SupervisorPart(bare=bare),
        WorkflowHintsPart(),
        RunsPart(starts_early=not bare),
        SchedulesPart(),
        ApprovalsPart(),
        CallsPart(),
    ]


def _find_teams(state: State) -> KnownTeams:
    """The digests of teams, for their page; what reads them is imported when somebody looks."""

    async def list_digests() -> list[dict[str, Any]]:
        from retinue.runtime.commands.teams.known import list_known

        return await list_known(state)

    async def compare(old: str, new: str) -> dict[str, Any]:
        from retinue.runtime.commands.teams.known import compare_known

        return dict(await compare_known(state, old, new))

    return KnownTeams(list_digests, compare)


@asynccontextmanager
async def open_hub(start: Start, chains: Chains | None = None) -> AsyncIterator[Process]:
    """The core of a hub: its stores, directory, dispatcher and agent."""
    settings, state = start.settings, start.state
    RunStore(settings.database, state.runs).check()
    async with AsyncExitStack() as stack:
        listings = SqliteListings(state.database)
        stack.callback(listings.close)
        table = settings.audit
        audit = SqliteAudit(state.database, keep_days=table.keep_days, keep_bytes=table.keep_bytes)
        stack.callback(audit.close)
        texts = SqliteTextIndex(state.database)
        stack.callback(texts.close)
        runs = LazyRuns(settings, state)
        mesh = await stack.enter_async_context(
            open_mesh(
                settings,
                state,
                listings,
                open_runs=runs.open,
                url=start.url,
                texts=texts,
                spending_of=spending_reader(settings, state),
                chains=chains or Chains(make_hub_id()),
            )
        )
        process = mesh.as_process("hub", start)
        process.add(LazyRuns, runs)
        runs.hold_artifacts(mesh.artifacts)
        runs.share_reports(mesh.hub.starter.progress)
        process.add(SqliteAudit, audit)
        links = NetworkLinks()
        process.add(NetworkLinks, links)
        process.add(
            MeshParts,
            MeshParts(
                start.url,
                tuple(mesh.registries.by_name),
                settings.discovery.upstreams,
                read_nodes=runs.list_nodes,
                links=links,
            ),
        )
        yield process
