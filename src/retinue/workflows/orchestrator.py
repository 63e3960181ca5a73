"""Definitions and runs together: check the input, start the run, wait for it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from retinue.core.errors import InvalidParametersError
from retinue.mesh.schema import compile_schema
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.run_records import RunRecord, RunRequest, check_run_id
from retinue.workflows.runs import Runs

MESH_SCOPES = frozenset({"exposed", "mesh"})
"""What stored workflows see (DESIGN 2, visibility); an inline one has its sender's view."""


class Orchestrator:
    """Starts definitions as runs; everything else about a run is asked of ``runs``."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    async def start(
        self,
        definition: Definition,
        workflow_input: Any,
        *,
        run_id: str | None = None,
        scopes: frozenset[str] = MESH_SCOPES,
        trace: Mapping[str, Any] | None = None,
        nested: Mapping[str, Any] | None = None,
        digest: str | None = None,
    ) -> RunRecord:
        """Start a run and come back at once.

        ``run_id`` is an idempotency key, made up when absent; ``trace`` is handed to the Caller as
        it is. ``nested`` are the workflows that the definition runs (``bundling``), ``digest`` is
        that of the artifact it came in. Raises InvalidParametersError for another form of id, and where
        the input breaks the definition's schema, RunConflictError for a used id with another definition
        or input.
        """
        if definition.input is not None:
            problems = compile_schema(definition.input, f"the input of {definition.name}").problems(
                workflow_input
            )
            if problems:
                raise InvalidParametersError(problems)
        ambient = {"scopes": sorted(scopes), "trace": None if trace is None else dict(trace)}
        request = RunRequest(
            name=definition.name,
            definition={**definition.to_json(), **({"nested": dict(nested)} if nested else {})},
            input=workflow_input,
            ambient=ambient if digest is None else {**ambient, "digest": digest},
        )
        run_id = uuid.uuid4().hex if run_id is None else check_run_id(run_id)
        return await self.runs.start(request, run_id=run_id)

    async def run(self, definition: Definition, workflow_input: Any, **more: Any) -> RunRecord:
        """Start a run and wait for its end; ``record.get()`` is its value. Takes and raises as `start`."""
        record = await self.start(definition, workflow_input, **more)
        return await self.runs.finish(record.id)
