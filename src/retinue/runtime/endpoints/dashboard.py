"""The dashboard of a hub: its routes over the mesh, and the sessions in front of the security checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from starlette.routing import Route
from starlette.types import Scope

from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.dashboard.asking import HubSkills
from retinue.dashboard.live import LiveUpdates
from retinue.dashboard.open_calls import OpenCalls
from retinue.dashboard.server import Dashboard
from retinue.dashboard.sessions import OPEN_PREFIXES, PAGE_PREFIXES, BrowserSessions, SessionMiddleware
from retinue.dashboard.team_pages import KnownTeams
from retinue.hub.workflows import RunStarter
from retinue.mesh.admission import Admission
from retinue.mesh.directory.directory import Directory
from retinue.mesh.observing.events import EventBus
from retinue.parts.process import Process
from retinue.storage.artifacts.state_artifacts import StateArtifacts
from retinue.storage.browser_sessions import SessionFile
from retinue.storage.run_store import RunStore
from retinue.web.security import SecurityMiddleware


@dataclass(slots=True)
class HubDashboard:
    """The parts of a hub's dashboard; ``end`` closes its streams, so that the server can stop."""

    routes: list[Route]
    sessions: BrowserSessions
    end: Callable[[], None]
    checks: SecurityMiddleware | None = None
    """The security checks of the hub, which verify the tokens of the sign-in page."""
    open_prefixes: Sequence[str] = OPEN_PREFIXES
    form_prefixes: Sequence[str] = PAGE_PREFIXES
    """Prefixes of the paths to which browsers send forms."""

    def take_checks(self, checks: SecurityMiddleware) -> None:
        """Put the sessions in front of the checks of pages; to be called before the first request."""
        self.checks = checks
        SessionMiddleware.put_before(checks, self.sessions)


@dataclass(frozen=True, slots=True)
class ServingProcesses:
    """A product of a hub with several processes: how many serve."""

    count: int


def make_dashboard(process: Process, run_store: RunStore, teams: KnownTeams | None = None) -> HubDashboard:
    """The dashboard of a hub."""
    # reads leave no event: a page that is looked at calls several skills every second
    dispatcher, directory = process.dispatcher, process.get(Directory)
    guard, events = dispatcher.admission.guard, dispatcher.admission.events
    silent = Admission(guard, events=EventBus())
    hub = HubSkills(dispatcher, replace(dispatcher, admission=silent))

    def subscribe(changed: Callable[[], None]) -> Callable[[], None]:
        subscriptions = [
            events.subscribe(lambda event: changed()),
            directory.subscribe(lambda change: changed()),
            process.get(RunStarter).progress.subscribe(changed),
        ]

        def end() -> None:
            for unsubscribe in subscriptions:
                unsubscribe()

        return end

    async def verify(token: bytes) -> Principal:
        assert made.checks is not None
        return await made.checks.authenticate({b"authorization": b"Bearer " + token})

    def note_access(scope: Scope, path: str, caller: str | None, error: RetinueError | None) -> None:
        assert made.checks is not None
        made.checks.note_access(scope, path, caller, error)

    sessions = BrowserSessions(process.state.mesh_key(), SessionFile(process.state.browser_sessions))
    live, open_calls = LiveUpdates(subscribe), OpenCalls()

    def end_streams() -> None:
        live.end()
        open_calls.end()

    serving = process.find(ServingProcesses)
    dashboard = Dashboard(
        hub,
        sessions,
        live,
        open_calls,
        url=process.url or "",
        version=version("retinue"),
        processes=1 if serving is None else serving.count,
        verify=verify,
        note_access=note_access,
        has_runs=run_store.exists,
        read_limits=lambda: (guard.max_depth, guard.new_trace_calls),
        artifacts=process.find(StateArtifacts),
        teams=teams,
    )
    made = HubDashboard(dashboard.routes(), sessions, end_streams)
    return made
