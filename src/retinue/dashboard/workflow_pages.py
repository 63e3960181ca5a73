"""The pages of workflows: the list, one workflow as a drawing with a start form, and a draft."""

from __future__ import annotations

import json

import orjson
from starlette.requests import Request
from starlette.responses import Response

from retinue.core.call import Principal
from retinue.core.errors import InvalidRequestError
from retinue.dashboard.asking import HubSkills
from retinue.dashboard.figures import draw_definition
from retinue.dashboard.forms import has_problem, make_form, read_form
from retinue.dashboard.frame import Page, PageFrame, describe_error, lead_to, read_entries
from retinue.dashboard.sessions import ROOT

_SAMPLE = """\
name: my-workflow
description: What it is for
input: {type: object, properties: {text: {type: string}}, required: [text]}
steps:
  - {id: ask, wait_for: {topic: approval, message: "May it go on?"}, timeout: 10m}
output: {text: "${{ input.text }}"}
"""


class WorkflowPages:
    """The pages below ``/ui/workflows``."""

    def __init__(self, hub: HubSkills, frame: PageFrame) -> None:
        self._hub = hub
        self._frame = frame

    def list_pages(self) -> dict[str, Page]:
        """The pages to read, by path."""
        return {f"{ROOT}/workflows": self._workflows}

    def list_forms(self) -> dict[str, Page]:
        """The pages with a form, by path."""
        # the draft's path is no workflow's: names of workflows have no slash
        return {
            f"{ROOT}/workflows/new/draft": self._draft,
            f"{ROOT}/workflows/{{workflow}}": self._workflow,
        }

    async def _workflows(self, request: Request, principal: Principal) -> Response:
        listing = await self._hub.read(principal, "list_workflows", {})
        schedules = await self._hub.read(principal, "list_schedules", {})
        rows = {"workflows": listing["workflows"], "schedules": schedules["schedules"]}
        return self._frame.render("workflows.html", request, rows, "workflows", data=rows)

    async def _workflow(self, request: Request, principal: Principal) -> Response:
        name = request.path_params["workflow"]
        listing = await self._hub.read(principal, "list_workflows", {"detailed": True})
        workflow = next((row for row in listing["workflows"] if row["name"] == name), None)
        if workflow is None:
            raise InvalidRequestError(f"There is no workflow {name}")
        definition = workflow["definition"]
        form = make_form(definition.get("input"))
        if request.method == "POST":
            values, form = read_form(form, await read_entries(request))
            if not has_problem(form):
                outcome = await self._hub.act(principal, "start_run", {"workflow": name, "input": values})
                return lead_to("runs", str(outcome.get()["run"]))
        context = {
            "workflow": workflow,
            "form": form,
            "graph": draw_definition(definition.get("steps", [])),
        }
        return self._frame.render("workflow.html", request, context, "workflows", data=workflow)

    async def _draft(self, request: Request, principal: Principal) -> Response:
        """A draft: checked at each request, and by the script of the page while a person types."""
        text, input_text, action = _SAMPLE, "", "check"
        if request.method == "POST":
            entries = await read_entries(request)
            text, input_text = entries.get("text", "").replace("\r\n", "\n"), entries.get("input", "")
            action = entries.get("action", "check")
        elif name := request.query_params.get("from"):
            text = await self._read_text(principal, name)
        checked = await self._hub.read(principal, "check_workflow", {"text": text})
        stored, problem = None, ""
        if checked["valid"] and action == "run":
            try:
                value = orjson.loads(input_text) if input_text.strip() else None
            except ValueError:
                problem = "the input is not JSON; texts stand in double quotes"
            else:
                arguments = {"workflow": checked["definition"], "input": value}
                outcome = await self._hub.act(principal, "start_run", arguments)
                if outcome.error is None:
                    return lead_to("runs", str(outcome.get()["run"]))
                problem = describe_error(outcome.error)
        elif checked["valid"] and action == "save":
            outcome = await self._hub.act(principal, "store_workflow", {"text": text})
            if outcome.error is None:
                stored = outcome.get()
            else:
                problem = describe_error(outcome.error)
        steps = checked["definition"].get("steps", []) if "definition" in checked else []
        context = {
            "text": text,
            "given": input_text,
            "checked": checked,
            "stored": stored,
            "problem": problem,
            "graph": draw_definition(steps),
        }
        return self._frame.render("draft.html", request, context, "workflows")

    async def _read_text(self, principal: Principal, name: str) -> str:
        """The definition of a stored workflow as JSON, to begin a draft with."""
        listing = await self._hub.read(principal, "list_workflows", {"detailed": True})
        workflow = next((row for row in listing["workflows"] if row["name"] == name), None)
        if workflow is None or "definition" not in workflow:
            raise InvalidRequestError(f"There is no workflow {name[:80]}")
        return json.dumps(workflow["definition"], indent=2, ensure_ascii=False)
