"""The pages of agents: the list with its search, one agent, and a form that calls one skill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retinue.core.call import Outcome, Principal
from retinue.core.errors import AccessError, InvalidParametersError, InvalidRequestError
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.figures import write_examples
from retinue.dashboard.files.result_files import ResultFiles
from retinue.dashboard.forms import WHOLE, has_problem, make_form, read_form
from retinue.dashboard.frame import PAGE, Page, PageFrame, describe_error, read_entries, read_number
from retinue.dashboard.open_calls import ANSWER_WITHIN_S, OpenCall, OpenCalls
from retinue.dashboard.questions import Question, make_question, read_answer
from retinue.dashboard.sessions import ROOT

SKILLS = 100
"""Skills of an agent on one page."""

_ORIGINS = {
    "imports": "import of an MCP server",
    "apis": "import of an HTTP API",
    "a2a": "import of an A2A agent",
    "koi": "KOI network",
    "models": "model that is not started",
}
"""The kinds of sources other than registries."""


class AgentPages:
    """The pages below ``/ui/agents``."""

    def __init__(self, hub: HubSkills, frame: PageFrame, files: ResultFiles, open_calls: OpenCalls) -> None:
        self._hub = hub
        self._open_calls = open_calls
        self._frame = frame
        self._files = files

    def list_pages(self) -> dict[str, Page]:
        """The pages to read, by path."""
        return {f"{ROOT}/agents": self._agents, f"{ROOT}/agents/{{agent}}": self._agent}

    def list_forms(self) -> dict[str, Page]:
        """The pages with a form, by path."""
        return {f"{ROOT}/agents/{{agent}}/skills/{{skill:path}}": self._skill}

    async def _agents(self, request: Request, principal: Principal) -> Response:
        query = request.query_params.get("q", "").strip()
        arguments: Json = {"detailed": True, "limit": PAGE, "query": query}
        if after := request.query_params.get("after"):
            arguments["after"] = after
        listing = await self._hub.read(principal, "list_agents", arguments)
        skills: list[Json] = []
        if query:
            reply = await self._hub.read(
                principal, "find_skills", {"query": query, "limit": 10, "detailed": True}
            )
            learned = {(row["agent"], row["skill"]): row for row in reply.get("learned", ())}
            skills = [
                {key: row.get(key) for key in ("agent", "skill", "description")}
                | {
                    "learned": (parts := learned.get((row["agent"], row["skill"]))),
                    "text": parts and parts["text"],
                }
                for row in reply["skills"]
            ]
        context = {
            "agents": listing["agents"],
            "next": listing.get("next"),
            "missing": listing.get("missing", []),
            "skills": skills,
            "q": query,
        }
        return self._frame.render(
            "agents.html", request, context, "agents", data=listing | {"skills": skills}
        )

    async def _agent(self, request: Request, principal: Principal) -> Response:
        name = request.path_params["agent"]
        shown = await self._hub.read(principal, "show_agent", {"name": name})
        calls = await self._hub.read(principal, "list_calls", {"agent": name, "limit": 12})
        receipts = await self._read_receipts(principal, name)
        skills, first = shown["card"]["skills"], read_number(request, "from")
        context = {
            "name": name,
            "agent": shown,
            "card": shown["card"],
            "calls": calls["calls"],
            "receipts": receipts,
            "skills": skills[first : first + SKILLS],
            "first": first,
            "next": first + SKILLS if first + SKILLS < len(skills) else None,
            "origin": _ORIGINS.get(shown["listing"].get("source", ""), "registry"),
        }
        data = shown | calls | {"receipts": receipts}
        return self._frame.render("agent.html", request, context, "agents", data=data)

    async def _read_receipts(self, principal: Principal, name: str) -> list[Json]:
        """The receipts of an agent that the hub has read; none for visitors other than the owner."""
        try:
            reply = await self._hub.read(principal, "show_receipts", {"agent": name, "fetch": False})
        except AccessError:
            return []
        receipts: list[Json] = reply["receipts"]
        return receipts

    async def _skill(self, request: Request, principal: Principal) -> Response:
        name, skill_id = request.path_params["agent"], request.path_params["skill"]
        shown = await self._hub.read(principal, "show_agent", {"name": name})
        skill = next((skill for skill in shown["card"]["skills"] if skill["id"] == skill_id), None)
        if skill is None:
            raise InvalidRequestError(f"Agent {name} has no skill {skill_id}")
        fields, as_json = make_form(skill.get("input_schema")), make_form(None)
        form = as_json if fields.kind == "json" or request.query_params.get("as") == "json" else fields
        arguments: Any = {}
        result: Outcome | OpenCall | None = None
        question: Question | None = None
        rated: Outcome | None = None
        if request.method == "POST":
            entries = await read_entries(request)
            action = entries.get("action", "")
            if name_of_call := entries.get("call"):
                call = self._open_calls.find(name_of_call, principal.id)
                arguments = call.arguments
                result, question = await self._answer(call, entries)
            elif action in ("good", "bad"):
                rating = {"skill": skill_id, "verdict": action, "agent": name}
                rated = await self._hub.act(principal, "rate_call", rating)
            else:
                # the form that was sent, and not the one that is asked for
                form = as_json if WHOLE in entries else fields
                arguments, form = read_form(form, entries)
                if has_problem(form):
                    pass
                elif action in ("as-json", "as-form"):
                    form = make_form(None if action == "as-json" else skill.get("input_schema"), arguments)
                else:
                    call_skill = partial(self._hub.act, principal, skill_id, arguments, name)
                    result = await self._open_calls.start(principal.id, arguments, call_skill)
        if isinstance(result, OpenCall) and question is None:
            question = make_question(result.question.schema)
        outcome = result if isinstance(result, Outcome) else None
        context = {
            "name": name,
            "skill": skill,
            "has_fields": fields.kind != "json",
            "form": form,
            "outcome": outcome,
            "files": [] if outcome is None else self._files.show(outcome.parts, principal),
            "open_call": result if isinstance(result, OpenCall) else None,
            "question": question,
            "rated": rated,
            "answer_within_s": ANSWER_WITHIN_S,
            "examples": write_examples(self._frame.url, name, skill_id, arguments),
        }
        return self._frame.render("skill.html", request, context, "agents")

    async def _answer(
        self, call: OpenCall, entries: Mapping[str, str]
    ) -> tuple[Outcome | OpenCall, Question | None]:
        """Answer the question of an open call; with its form where the answer does not fit."""
        if entries.get("action") == "decline":
            return await self._open_calls.decline(call), None
        value, question = read_answer(make_question(call.question.schema), entries)
        if not question.is_complete:
            return call, question
        try:
            return await self._open_calls.answer(call, value), None
        except InvalidParametersError as error:
            return call, replace(question, problem=describe_error(error))
