"""The routes of the dashboard: each page renders the results of a few calls of the hub's skills.

A visitor has the rights of the session's token, an anonymous one those of anonymous callers. Actions are POST
requests of this server's own pages; they are calls like all others, with an audit row each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from retinue.core.call import Principal
from retinue.dashboard.agent_pages import AgentPages
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.attention import MAX_SHOWN, count_statuses, find_attention
from retinue.dashboard.drawings.shapes import place_bars
from retinue.dashboard.figures import measure
from retinue.dashboard.files import artifact_files, result_files
from retinue.dashboard.files.artifact_files import ArtifactFiles
from retinue.dashboard.files.result_files import ResultFiles
from retinue.dashboard.frame import PAGE, Page, PageFrame, read_number
from retinue.dashboard.live import LiveUpdates
from retinue.dashboard.mesh_page import MeshPage
from retinue.dashboard.open_calls import OpenCalls
from retinue.dashboard.policy_pages import PolicyPages
from retinue.dashboard.recent_calls import RecentCalls
from retinue.dashboard.rendering import read_static
from retinue.dashboard.run_pages import RunPages
from retinue.dashboard.sessions import ROOT, BrowserSessions
from retinue.dashboard.sign_in_pages import Note, SignInPages, Verify
from retinue.dashboard.team_pages import KnownTeams, TeamPages
from retinue.dashboard.workflow_pages import WorkflowPages
from retinue.mesh.artifacts import ArtifactStore

BARS = 100
"""Calls of one page of a trace."""

NEWEST = 12
"""Calls on the overview."""


class Dashboard:
    """The pages of one hub at ``url``; ``has_runs`` tells whether any run was stored.

    ``read_limits`` gives the greatest depth of a chain, and how many further calls its first may cause.
    """

    def __init__(
        self,
        hub: HubSkills,
        sessions: BrowserSessions,
        live: LiveUpdates,
        open_calls: OpenCalls,
        *,
        url: str,
        version: str,
        processes: int,
        verify: Verify,
        note_access: Note,
        has_runs: Callable[[], bool],
        read_limits: Callable[[], tuple[int, int]],
        artifacts: ArtifactStore | None = None,
        teams: KnownTeams | None = None,
    ) -> None:
        self._hub = hub
        self._live = live
        self._read_limits = read_limits
        self._recent = RecentCalls(hub)
        self._frame = PageFrame(url, version, processes)
        self._files = ResultFiles()
        self._artifacts = ArtifactFiles(artifacts)
        self._agents = AgentPages(hub, self._frame, self._files, open_calls)
        self._runs = RunPages(hub, self._frame, self._files, self._artifacts, has_runs)
        self._workflows = WorkflowPages(hub, self._frame)
        self._policies = PolicyPages(hub, self._frame)
        self._teams = TeamPages(teams, self._frame)
        self._mesh = MeshPage(hub, self._frame, self._recent)
        self._sign_in = SignInPages(sessions, self._frame, verify, note_access)

    def routes(self) -> list[Route]:
        """The routes of all pages."""
        pages: dict[str, Page] = {
            "/": self._overview,
            f"{ROOT}/calls": self._calls,
            f"{ROOT}/traces/{{trace}}": self._trace,
            f"{ROOT}/mesh": self._mesh.show,
            result_files.PATH: self._files.answer,
            artifact_files.PATH: self._artifacts.answer,
            **self._agents.list_pages(),
            **self._runs.list_pages(),
            **self._workflows.list_pages(),
            **self._policies.list_pages(),
            **self._teams.list_pages(),
        }
        forms = {
            **self._agents.list_forms(),
            **self._workflows.list_forms(),
            **self._policies.list_forms(),
            **self._sign_in.list_forms(),
        }
        actions = {**self._runs.list_actions(), **self._sign_in.list_actions()}
        serve = self._frame.serve
        return [
            *(Route(path, serve(page), methods=["GET"]) for path, page in pages.items()),
            *(Route(path, serve(page), methods=["GET", "POST"]) for path, page in forms.items()),
            *(Route(path, serve(page), methods=["POST"]) for path, page in actions.items()),
            Route(f"{ROOT}/live", _Stream(self._live), methods=["GET"]),
            Route(f"{ROOT}/static/{{name}}", _static, methods=["GET"]),
            *self._sign_in.list_routes(),
            # last: any other path is a page, too
            Route(f"{ROOT}/{{path:path}}", serve(self._show_missing), methods=["GET"]),
        ]

    async def _show_missing(self, request: Request, principal: Principal) -> Response:
        context = {"error": f"There is no page {request.scope['path'][:200]}", "remedy": ""}
        return self._frame.render("failure.html", request, context, "", 404)

    # Overview

    async def _overview(self, request: Request, principal: Principal) -> Response:
        mapped = await self._hub.read(principal, "map_agents", {"limit": MAX_SHOWN})
        health = count_statuses(mapped)
        calls: list[Json] = []
        figures = measure(calls, time.time())
        running: list[Json] = []
        if is_member := "mesh" in principal.scopes:
            async with self._recent.lock:
                recent = await self._recent.read(principal)
                calls, figures = recent[:NEWEST], measure(recent, time.time())
                del recent
            running = await self._runs.list_runs(principal, status="running", limit=PAGE)
        attention = await find_attention(self._hub, principal, mapped, running)
        context: Json = {
            "is_member": is_member,
            "health": health,
            "agents": health.total(),
            "attention": attention,
            "calls": calls,
            "figures": figures,
            "running": running,
        }
        data = {**context, "attention": asdict(attention) if attention else {}}
        return self._frame.render("overview.html", request, context, "overview", data=data)

    # Calls

    async def _calls(self, request: Request, principal: Principal) -> Response:
        entries = {key: value for key, value in request.query_params.items() if value.strip()}
        filters: Json = {
            key: entries[key] for key in ("skill", "agent", "caller", "status") if key in entries
        }
        filters |= {"limit": PAGE, "failed": entries.get("failed") == "1"}
        if before := read_number(request, "before"):
            filters["before"] = before
        listing = await self._hub.read(principal, "list_calls", filters)
        context = {"calls": listing["calls"], "next": listing.get("next"), "wanted": filters}
        return self._frame.render("calls.html", request, context, "calls", data=listing)

    async def _trace(self, request: Request, principal: Principal) -> Response:
        trace = request.path_params["trace"]
        listing = await self._hub.read(principal, "show_trace", {"trace": trace})
        bars, length_ms = place_bars(listing["calls"])
        only_failed = request.query_params.get("failed") == "1"
        chosen = [bar for bar in bars if bar.call["status"] != "done"] if only_failed else bars
        start = read_number(request, "from")
        max_depth, max_calls = self._read_limits()
        context = {
            "trace": trace,
            "deepest": max((bar.call["depth"] for bar in bars), default=0),
            "max_depth": max_depth,
            "max_calls": max_calls,
            "bars": chosen[start : start + BARS],
            "count": len(bars),
            "failed_count": sum(bar.call["status"] != "done" for bar in bars),
            "failed": only_failed,
            "start": start,
            "next": start + BARS if start + BARS < len(chosen) else None,
            "previous": max(0, start - BARS) if start else None,
            "length_ms": length_ms,
        }
        return self._frame.render("trace.html", request, context, "calls", data=listing)


class _Stream:
    """The stream of ticks as an ASGI app."""

    def __init__(self, live: LiveUpdates) -> None:
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._live.stream(scope, receive, send)


async def _static(request: Request) -> Response:
    return read_static(request.path_params["name"]) or JSONResponse({"detail": "Not Found"}, 404)
