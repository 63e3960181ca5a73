"""The pages of workflows: the stored ones, and one of them drawn, with a form to start it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from retinue.core.call import Principal
from retinue.core.errors import InvalidRequestError
from retinue.dashboard.asking import Hub
from retinue.dashboard.drawings import NODE_HEIGHT, NODE_WIDTH
from retinue.dashboard.figures import draw_definition
from retinue.dashboard.forms import find_problems, make_form, read_form
from retinue.dashboard.frame import Frame, Page, lead_to, read_entries
from retinue.dashboard.sessions import ROOT


class WorkflowPages:
    """The pages below ``/ui/workflows``."""

    def __init__(self, hub: Hub, frame: Frame) -> None:
        self._hub = hub
        self._frame = frame

    def list_pages(self) -> dict[str, Page]:
        """The pages to read, by path."""
        return {f"{ROOT}/workflows": self._workflows}

    def list_forms(self) -> dict[str, Page]:
        """The pages with a form, by path."""
        return {f"{ROOT}/workflows/{{workflow}}": self._workflow}

    async def _workflows(self, request: Request, principal: Principal) -> Response:
        found = await self._hub.read(principal, "list_workflows", {})
        return self._frame.render("workflows.html", request, {"workflows": found["workflows"]}, "workflows")

    async def _workflow(self, request: Request, principal: Principal) -> Response:
        name = request.path_params["workflow"]
        found = await self._hub.read(principal, "list_workflows", {"detailed": True})
        workflow = next((one for one in found["workflows"] if one["name"] == name), None)
        if workflow is None:
            raise InvalidRequestError(f"There is no workflow {name}")
        definition = workflow["definition"]
        form = make_form(definition.get("input"))
        if request.method == "POST":
            given, form = read_form(form, await read_entries(request))
            if not find_problems(form):
                outcome = await self._hub.act(principal, "start_run", {"workflow": name, "input": given})
                return lead_to("runs", str(outcome.get()["run"]))
        context = {
            "workflow": workflow,
            "form": form,
            "graph": draw_definition(definition.get("steps", [])),
            "node": {"width": NODE_WIDTH, "height": NODE_HEIGHT},
        }
        return self._frame.render("workflow.html", request, context, "workflows")
