"""The routes of the dashboard. Each page is the result of a few calls of the hub's skills, rendered.

A visitor has the rights of the session's token, an anonymous one those of anonymous callers. Actions are POST
requests of this server's own pages; they are calls like all others, with an audit row each.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from retinue.core.call import Principal
from retinue.core.errors import InvalidRequestError, NotAllowedError, RetinueError
from retinue.core.record import HUB_NAME
from retinue.dashboard.asking import Hub, Json
from retinue.dashboard.drawings import (
    NODE_HEIGHT,
    NODE_WIDTH,
    place_bars,
    place_spiral,
)
from retinue.dashboard.figures import (
    RECENT_CALLS,
    RECENT_S,
    draw_definition,
    draw_steps,
    find_waiting,
    flatten,
    measure,
    write_examples,
)
from retinue.dashboard.forms import find_problems, make_form, read_form
from retinue.dashboard.live import LiveUpdates
from retinue.dashboard.rendering import read_static, render_page
from retinue.dashboard.sessions import ROOT, Sessions, is_own_page, read_cookie, set_cookie
from retinue.web.disconnect import read_body
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

PAGE = 50
WAITING_RUNS = 10
ACTIONS = ("cancel_run", "resume_run", "rerun_run", "signal_run")
"""What can be done to a run; each is a skill of the hub."""

_BROKEN = ("unavailable", "unreachable", "degraded", "disabled")

Page = Callable[[Request, Principal], Awaitable[Response]]
Verify = Callable[[bytes], Awaitable[Principal]]
"""The principal of a token; raises AccessError."""


class Dashboard:
    """The pages of one hub at ``url``; ``has_runs`` tells whether any run was stored."""

    def __init__(
        self,
        hub: Hub,
        sessions: Sessions,
        live: LiveUpdates,
        *,
        url: str,
        version: str,
        verify: Verify,
        has_runs: Callable[[], bool],
    ) -> None:
        self._hub = hub
        self._sessions = sessions
        self._live = live
        self._url = url
        self._prefix = urlsplit(url).path.rstrip("/")
        self._version = version
        self._verify = verify
        self._has_runs = has_runs

    def routes(self) -> list[Route]:
        """The routes of all pages."""
        pages: dict[str, Page] = {
            "/": self._overview,
            f"{ROOT}/agents": self._agents,
            f"{ROOT}/agents/{{agent}}": self._agent,
            f"{ROOT}/calls": self._calls,
            f"{ROOT}/traces/{{trace}}": self._trace,
            f"{ROOT}/runs": self._runs,
            f"{ROOT}/runs/{{run}}": self._run,
            f"{ROOT}/workflows": self._workflows,
            f"{ROOT}/mesh": self._mesh,
        }
        forms: dict[str, Page] = {
            f"{ROOT}/agents/{{agent}}/skills/{{skill:path}}": self._skill,
            f"{ROOT}/workflows/{{workflow}}": self._workflow,
            f"{ROOT}/sign-in": self._sign_in,
        }
        actions: dict[str, Page] = {
            f"{ROOT}/runs/{{run}}": self._change_run,
            f"{ROOT}/sign-out": self._sign_out,
        }
        return [
            *(Route(path, self._page(page), methods=["GET"]) for path, page in pages.items()),
            *(Route(path, self._page(page), methods=["GET", "POST"]) for path, page in forms.items()),
            *(Route(path, self._page(page), methods=["POST"]) for path, page in actions.items()),
            Route(f"{ROOT}/live", _Stream(self._live), methods=["GET"]),
            Route(f"{ROOT}/static/{{name}}", _static, methods=["GET"]),
            Route(f"{ROOT}/links", self._make_link, methods=["POST"]),
            Route(f"{ROOT}/link/{{code}}", self._use_link, methods=["GET"]),
        ]

    def _page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """A page whose failure is a page too; POST requests must come from a page of this server."""

        async def answer(request: Request) -> Response:
            identity = identity_of(request.scope)
            try:
                if request.method == "POST" and not is_own_page(identity.headers):
                    raise NotAllowedError("only pages of this server may do this")
                return await page(request, identity.principal)
            except RetinueError as error:
                fault = rest_fault(error)
                context = {"error": error.message, "remedy": error.remedy}
                return self._render("failure.html", request, context, "", fault.status)

        return answer

    def _render(
        self, template: str, request: Request, context: Mapping[str, Any], section: str, status: int = 200
    ) -> Response:
        identity = identity_of(request.scope)
        shared = {
            "section": section,
            "caller": identity.principal.id,
            "is_signed_in": read_cookie(identity.headers) is not None,
            "version": self._version,
            "path": request.url.path,
            "query": dict(request.query_params),
            "home": self._prefix + "/",
            "root": self._prefix + ROOT,
        }
        return render_page(template, {**shared, **context}, status)

    # Overview

    async def _overview(self, request: Request, principal: Principal) -> Response:
        agents = await self._map_agents(principal)
        now = time.time()
        calls: list[Json] = []
        running: list[Json] = []
        waiting: list[Json] = []
        if is_member := "mesh" in principal.scopes:
            found = await self._hub.read(principal, "list_calls", {"limit": RECENT_CALLS})
            recent = (call for call in found["calls"] if now - call["ended_at"] <= RECENT_S)
            # the hub's own skills say little, and those that follow a run take as long as they are let
            calls = [call for call in recent if call["agent"] != HUB_NAME]
            running = await self._list_runs(principal, status="running", limit=PAGE)
        for run in running[:WAITING_RUNS]:
            shown = await self._hub.read(principal, "show_run", {"run": run["run"]})
            waiting += [{**run, "step": step} for step in find_waiting(shown["steps"])]
        context = {
            "is_member": is_member,
            "health": Counter(agent["status"] for agent in agents),
            "agents": len(agents),
            "attention": [agent for agent in agents if agent["status"] in _BROKEN][:PAGE],
            "calls": calls[:12],
            "figures": measure(calls, now),
            "running": running,
            "waiting": waiting,
        }
        return self._render("overview.html", request, context, "overview")

    async def _map_agents(self, principal: Principal) -> list[Json]:
        return list((await self._hub.read(principal, "map_agents"))["agents"])

    async def _list_runs(self, principal: Principal, **wanted: Any) -> list[Json]:
        if not self._has_runs():
            return []
        found = await self._hub.read(principal, "list_runs", wanted)
        return list(found["runs"])

    # Agents

    async def _agents(self, request: Request, principal: Principal) -> Response:
        query = request.query_params.get("q", "").strip()
        wanted: Json = {"detailed": True, "limit": PAGE, "query": query}
        if after := request.query_params.get("after"):
            wanted["after"] = after
        found = await self._hub.read(principal, "list_agents", wanted)
        skills: list[Json] = []
        if query:
            skills = (await self._hub.read(principal, "find_skills", {"query": query, "limit": 10}))["skills"]
        context = {
            "agents": found["agents"],
            "next": found.get("next"),
            "missing": found.get("missing", []),
            "skills": skills,
            "q": query,
        }
        return self._render("agents.html", request, context, "agents")

    async def _agent(self, request: Request, principal: Principal) -> Response:
        name = request.path_params["agent"]
        shown = await self._hub.read(principal, "show_agent", {"name": name})
        calls = await self._hub.read(principal, "list_calls", {"agent": name, "limit": 12})
        context = {"name": name, "agent": shown, "card": shown["card"], "calls": calls["calls"]}
        return self._render("agent.html", request, context, "agents")

    async def _skill(self, request: Request, principal: Principal) -> Response:
        name, skill_id = request.path_params["agent"], request.path_params["skill"]
        shown = await self._hub.read(principal, "show_agent", {"name": name})
        skill = next((one for one in shown["card"]["skills"] if one["id"] == skill_id), None)
        if skill is None:
            raise InvalidRequestError(f"Agent {name} has no skill {skill_id}")
        form = make_form(skill.get("input_schema"))
        arguments: Any = {}
        outcome = None
        if request.method == "POST":
            arguments, form = read_form(form, await _read_entries(request))
            if not find_problems(form):
                outcome = await self._hub.act(principal, skill_id, arguments, name)
        context = {
            "name": name,
            "skill": skill,
            "form": form,
            "outcome": outcome,
            "examples": write_examples(self._url, name, skill_id, arguments),
        }
        return self._render("skill.html", request, context, "agents")

    # Calls

    async def _calls(self, request: Request, principal: Principal) -> Response:
        given = {key: value for key, value in request.query_params.items() if value.strip()}
        wanted: Json = {key: given[key] for key in ("skill", "agent", "caller", "status") if key in given}
        wanted |= {"limit": PAGE, "failed": given.get("failed") == "1"}
        if given.get("before", "").isdigit():
            wanted["before"] = int(given["before"])
        found = await self._hub.read(principal, "list_calls", wanted)
        context = {"calls": found["calls"], "next": found.get("next"), "wanted": wanted}
        return self._render("calls.html", request, context, "calls")

    async def _trace(self, request: Request, principal: Principal) -> Response:
        trace = request.path_params["trace"]
        found = await self._hub.read(principal, "show_trace", {"trace": trace})
        bars, length_ms = place_bars(found["calls"])
        context = {"trace": trace, "bars": bars, "length_ms": length_ms}
        return self._render("trace.html", request, context, "calls")

    # Runs and workflows

    async def _runs(self, request: Request, principal: Principal) -> Response:
        given = {key: value for key, value in request.query_params.items() if value.strip()}
        wanted = {key: given[key] for key in ("status", "workflow") if key in given}
        runs = await self._list_runs(principal, **wanted, limit=PAGE)
        return self._render("runs.html", request, {"runs": runs, "wanted": wanted}, "runs")

    async def _run(self, request: Request, principal: Principal) -> Response:
        run = await self._hub.read(principal, "show_run", {"run": request.path_params["run"]})
        context = {
            "run": run,
            "graph": draw_steps(run["steps"]),
            "waiting": find_waiting(run["steps"]),
            "rows": list(flatten(run["steps"])),
            "node": {"width": NODE_WIDTH, "height": NODE_HEIGHT},
        }
        return self._render("run.html", request, context, "runs")

    async def _change_run(self, request: Request, principal: Principal) -> Response:
        entries = await _read_entries(request)
        run, action = request.path_params["run"], entries.pop("action", "")
        if action not in ACTIONS:
            raise InvalidRequestError(f"action is {action[:40]!r}", remedy=f"one of {', '.join(ACTIONS)}")
        arguments: Json = {"run": run, **{key: value for key, value in entries.items() if value}}
        if action == "signal_run":
            arguments["value"] = _parse_answer(entries.get("value", ""))
        value = (await self._hub.act(principal, action, arguments)).get()
        shown = value.get("run", run) if isinstance(value, Mapping) else run
        return RedirectResponse(f"{ROOT}/runs/{quote(str(shown), safe='')}", 303)

    async def _workflows(self, request: Request, principal: Principal) -> Response:
        found = await self._hub.read(principal, "list_workflows", {})
        return self._render("workflows.html", request, {"workflows": found["workflows"]}, "workflows")

    async def _workflow(self, request: Request, principal: Principal) -> Response:
        name = request.path_params["workflow"]
        found = await self._hub.read(principal, "list_workflows", {"detailed": True})
        workflow = next((one for one in found["workflows"] if one["name"] == name), None)
        if workflow is None:
            raise InvalidRequestError(f"There is no workflow {name}")
        definition = workflow["definition"]
        form = make_form(definition.get("input"))
        if request.method == "POST":
            given, form = read_form(form, await _read_entries(request))
            if not find_problems(form):
                outcome = await self._hub.act(principal, "start_run", {"workflow": name, "input": given})
                run = quote(str(outcome.get()["run"]), safe="")
                return RedirectResponse(f"{ROOT}/runs/{run}", 303)
        context = {
            "workflow": workflow,
            "form": form,
            "graph": draw_definition(definition.get("steps", [])),
            "node": {"width": NODE_WIDTH, "height": NODE_HEIGHT},
        }
        return self._render("workflow.html", request, context, "workflows")

    async def _mesh(self, request: Request, principal: Principal) -> Response:
        agents = await self._map_agents(principal)
        by_source: dict[str, list[Json]] = {}
        for agent in agents:
            by_source.setdefault(str(agent.get("source", "")), []).append(agent)
        sources = []
        for source, members in sorted(by_source.items()):
            size = 40 + 11.0 * (len(members) + 6) ** 0.5 * 2
            dots = place_spiral([(one["name"], one["status"]) for one in members], size / 2)
            sources.append({"name": source, "size": round(size), "dots": dots, "count": len(members)})
        return self._render("mesh.html", request, {"sources": sources, "agents": len(agents)}, "mesh")

    # Signing in

    async def _sign_in(self, request: Request, principal: Principal) -> Response:
        target = request.query_params.get("to", "/")
        if not target.startswith("/") or target.startswith(("//", "/\\")):
            target = "/"
        problem = ""
        if request.method == "POST":
            token = (await _read_entries(request)).get("token", "").strip().encode()
            try:
                await self._verify(token)
            except RetinueError as error:
                problem = error.message
            else:
                return self._begin(request, self._sessions.begin(token), target)
        return self._render(
            "sign_in.html", request, {"problem": problem, "to": target}, "", 403 if problem else 200
        )

    async def _sign_out(self, request: Request, principal: Principal) -> Response:
        session = read_cookie(identity_of(request.scope).headers)
        if session is not None:
            self._sessions.end(session)
        response = RedirectResponse("/", 303)
        response.headers["set-cookie"] = set_cookie("", secure=request.url.scheme == "https")
        return response

    async def _make_link(self, request: Request) -> Response:
        """For ``retinue dashboard``: a link that signs a browser in with the token of this request."""
        authorization = identity_of(request.scope).headers.get(b"authorization", b"")
        token = authorization[7:].strip()
        if not token:
            return JSONResponse({"detail": "send the token that the browser is to have"}, 401)
        return JSONResponse({"path": self._sessions.make_link(token)})

    async def _use_link(self, request: Request) -> Response:
        session = self._sessions.use_link(request.path_params["code"])
        if session is None:
            context = {"error": "This link was used already, or is too old.", "remedy": "retinue dashboard"}
            return self._render("failure.html", request, context, "", 403)
        return self._begin(request, session, "/")

    def _begin(self, request: Request, session: str, target: str) -> Response:
        response = RedirectResponse(target, 303)
        response.headers["set-cookie"] = set_cookie(session, secure=request.url.scheme == "https")
        return response


class _Stream:
    """The stream of ticks as an ASGI app."""

    def __init__(self, live: LiveUpdates) -> None:
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._live.stream(scope, receive, send)


async def _static(request: Request) -> Response:
    return read_static(request.path_params["name"]) or JSONResponse({"detail": "Not Found"}, 404)


async def _read_entries(request: Request) -> dict[str, str]:
    """The fields of a submitted form."""
    body = await read_body(request.receive)
    try:
        return dict(parse_qsl((body or b"").decode(), keep_blank_values=True, max_num_fields=1_000))
    except ValueError:
        raise InvalidRequestError("the form cannot be read") from None


def _parse_answer(text: str) -> Any:
    """An answer to a waiting step: JSON, otherwise the text itself."""
    try:
        return orjson.loads(text)
    except ValueError:
        return text
