"""Runs another workflow, in YAML or in Python, as a child run."""

from __future__ import annotations

from functools import partial
from typing import Any

from retinue.core.call import Principal
from retinue.core.errors import InvalidParametersError, StepFailedError
from retinue.flows.steps import Perform
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.definitions.run_forms import WholeRun, render_form
from retinue.workflows.interpreter.branches import Branch, branch_failure, child_origin, run_branches
from retinue.workflows.interpreter.frame import Frame, Tools
from retinue.workflows.library import Library, bundle, is_run_as_mesh
from retinue.workflows.runs.records import RunRequest, as_json

FIND_S = 60.0
"""How long a workflow is looked for."""


def make_child(library: Library, tools: Tools, name: str, run_input: Any) -> Perform[Any]:
    """The run of a stored workflow with an input; its definition is recorded before it begins.

    Policies decide about its start as if the caller of the run had started it, and it is recorded with the
    definition that they let it start, so that a run that is taken up goes on.
    """

    async def read(starter: Principal) -> Any:
        whole = await bundle(library, await library.get(name))
        definition = whole.loaded.definition
        if tools.check_start is not None:
            nested = (workflow.definition for workflow in whole.nested.values())
            for started in (definition, *nested):
                tools.check_start(starter, started.name)
        if definition.input is not None:
            problems = compile_schema(definition.input, f"the input of {name}").problems(run_input)
            if problems:
                raise InvalidParametersError(problems)
        form = render_form(WholeRun.of(definition, whole.nested))
        return {"definition": form, "as_mesh": is_run_as_mesh(whole.loaded)}

    async def perform(frame: Frame, path: str) -> Any:
        facts = {"kind": "choose", "skill": name, "below": "/choose"}
        choose = partial(read, frame.request.origin.principal)
        choice = await frame.context.step(f"{path}/choose", choose, timeout_s=FIND_S, facts=facts)
        if choice.fault is not None:
            raise StepFailedError(path, None, as_json(choice.fault))
        origin = child_origin(frame)
        request = RunRequest(
            name=f"{frame.request.name}/{path}",
            definition=choice.value["definition"],
            input=run_input,
            origin=origin.as_mesh() if choice.value["as_mesh"] else origin,
        )
        outcome = (await run_branches(frame, path, [Branch(path, request)]))[0]
        if outcome.status != "done":
            raise branch_failure(outcome)
        return outcome.value

    return perform
