"""The pages of agents: the list with its search, one agent, and a form to try one of its skills."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retinue.core.call import Principal
from retinue.core.errors import InvalidRequestError
from retinue.dashboard.asking import Hub, Json
from retinue.dashboard.figures import write_examples
from retinue.dashboard.forms import find_problems, make_form, read_form
from retinue.dashboard.frame import PAGE, Frame, Page, read_entries
from retinue.dashboard.sessions import ROOT


class AgentPages:
    """The pages below ``/ui/agents``."""

    def __init__(self, hub: Hub, frame: Frame) -> None:
        self._hub = hub
        self._frame = frame

    def list_pages(self) -> dict[str, Page]:
        """The pages to read, by path."""
        return {f"{ROOT}/agents": self._agents, f"{ROOT}/agents/{{agent}}": self._agent}

    def list_forms(self) -> dict[str, Page]:
        """The pages with a form, by path."""
        return {f"{ROOT}/agents/{{agent}}/skills/{{skill:path}}": self._skill}

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
        return self._frame.render("agents.html", request, context, "agents")

    async def _agent(self, request: Request, principal: Principal) -> Response:
        name = request.path_params["agent"]
        shown = await self._hub.read(principal, "show_agent", {"name": name})
        calls = await self._hub.read(principal, "list_calls", {"agent": name, "limit": 12})
        context = {"name": name, "agent": shown, "card": shown["card"], "calls": calls["calls"]}
        return self._frame.render("agent.html", request, context, "agents")

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
            arguments, form = read_form(form, await read_entries(request))
            if not find_problems(form):
                outcome = await self._hub.act(principal, skill_id, arguments, name)
        context = {
            "name": name,
            "skill": skill,
            "form": form,
            "outcome": outcome,
            "examples": write_examples(self._frame.url, name, skill_id, arguments),
        }
        return self._frame.render("skill.html", request, context, "agents")
