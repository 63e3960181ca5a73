"""The hub's skills for authors of workflows: check a draft, and store it in this mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Principal
from retinue.core.errors import (
    DefinitionError,
    InvalidRequestError,
    NotAllowedError,
    RetinueError,
    UnknownWorkflowError,
)
from retinue.hub.known_skills import KnownSkills
from retinue.hub.run_access import reject_limited
from retinue.mesh.permissions import is_mesh_itself
from retinue.workflows.definitions.loading import Loaded, inspect_text, list_builtins, load
from retinue.workflows.library import LONG_TEXT, Library, bundle

Json = dict[str, Any]

DRAFT = "draft"
"""The name of the text in messages."""

MAX_FAULTS = 50

StoreWorkflow = Callable[[Principal, str, bytes], Awaitable[str]]
"""Stores a text of a principal under a name in the registry of this state; returns the reference.

Raises RegistryError, and PolicyDeniedError where policies forbid that the principal publishes it.
"""


def add_draft_skills(
    agent: Agent,
    library: Library,
    known_skills: KnownSkills,
    store_workflow: StoreWorkflow | None,
) -> None:
    """Add ``check_workflow``, and ``store_workflow`` where there is a place for workflows."""

    @agent.skill(read_only=True)
    async def check_workflow(
        text: Annotated[str, Field(description="The workflow as YAML or JSON")], ctx: Context
    ) -> Json:
        """Checks the text of a workflow: its faults with their lines, and its definition."""
        reject_limited(ctx.principal)
        loaded, faults = await _inspect(text)
        bundled = None
        if loaded is not None and not faults:
            try:
                bundled = await bundle(library, loaded)
            except RetinueError as error:
                faults = [error if isinstance(error, DefinitionError) else _of_text(error)]
        reply: Json = {
            "valid": not faults,
            "problems": [_render(fault) for fault in faults[:MAX_FAULTS]],
            "warnings": [],
        }
        if loaded is not None:
            reply |= {"name": loaded.definition.name, "definition": loaded.definition.to_json()}
        if loaded is not None and bundled is not None:
            principal = ctx.principal
            findings = await known_skills.inspect(bundled, loaded, principal, principal.scopes)
            reply["warnings"] = [
                _render(finding.fault) | {"blocks_run": finding.blocks} for finding in findings[:MAX_FAULTS]
            ]
        return reply

    if store_workflow is None:
        return
    store = store_workflow

    @agent.skill("store_workflow")
    async def store_text(
        text: Annotated[str, Field(description="The workflow as YAML or JSON")], ctx: Context
    ) -> Json:
        """Stores a workflow in the registry of this mesh, in place of the one of the same name."""
        if not is_mesh_itself(ctx.principal):
            raise NotAllowedError(
                "only the mesh itself stores workflows",
                remedy="use the token of the state (retinue dashboard), or retinue publish FILE",
            )
        loaded = await asyncio.to_thread(load, text, source=DRAFT)
        await bundle(library, loaded)
        name = loaded.definition.name
        await _check_free(library, name)
        return {"workflow": name, "reference": await store(ctx.principal, name, text.encode())}


async def _inspect(text: str) -> tuple[Loaded | None, list[DefinitionError]]:
    # a long text takes up to some seconds
    if len(text) < LONG_TEXT:
        return inspect_text(text, source=DRAFT)
    return await asyncio.to_thread(inspect_text, text, source=DRAFT)


async def _check_free(library: Library, name: str) -> None:
    """Raise InvalidRequestError where a stored workflow would be found before that of the registry."""
    if name in list_builtins():
        raise InvalidRequestError(f"{name} is the name of a built-in workflow", remedy="choose another name")
    try:
        known = await library.get(name)
    except (DefinitionError, UnknownWorkflowError):
        return
    if known.is_own and known.digest is None:
        raise InvalidRequestError(f"{known.document.source} has this name", remedy="change that file")


def _of_text(error: RetinueError) -> DefinitionError:
    return DefinitionError(error.message, source=DRAFT, remedy=error.remedy)


def _render(fault: DefinitionError) -> Json:
    # the fault of a workflow that this one runs has the lines of another text
    is_own = fault.source == DRAFT
    return {
        "line": fault.line if is_own else 0,
        "column": fault.column if is_own else 0,
        "message": fault.problem if is_own else fault.message,
        "remedy": fault.remedy,
    }
