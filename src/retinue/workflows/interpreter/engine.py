"""The interpreter: the body of every run, which walks a definition.

It keeps the rules of ``runs``: each durable call has the path of its node, one comes after the
other, and what goes on side by side are child runs. Paths: ``plan``; ``refine#2.build`` (a loop's
second round); ``route.fix`` (a step of a switch); ``each.left``, ``files#3`` (a branch, an item, and
the path of its child run); below a node ``…/choose`` (the choice of agent), ``…@2`` (the second
attempt), ``…/again`` (the same attempt at another agent because the first was unreachable, once),
``…/undo`` (its compensation), ``…/handled`` (a failure that its ``on_error`` took).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.workflows.caching import cache_key
from retinue.workflows.caller import Caller
from retinue.workflows.definitions.definition import Definition, iterate_steps
from retinue.workflows.definitions.step_parts import DEFAULT_CACHE_TTL_S, Settings
from retinue.workflows.expressions.scope import Scope, nearest_output
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.walk import Walk
from retinue.workflows.run_records import RunRequest
from retinue.workflows.runs import RunContext

_CACHE_TIMEOUT_S = 60.0


class Interpreter:
    """Runs definitions; its `run` is the Body that the Runs are made with."""

    def __init__(self, tools: Tools | Caller) -> None:
        self._tools = tools if isinstance(tools, Tools) else Tools(tools)

    async def run(self, context: RunContext, request: RunRequest) -> Any:
        """Walk the definition of a run, of a nested workflow, or of a branch, to its end.

        Gives the output; of what runs as part of another run
        ``{"output": …, "entries": [[id, entry], …], "undo": […]}``.
        Raises StepFailedError, which names the step, its agent, the cause, and what was undone.
        """
        definition = dict(request.definition)
        nested, as_step = definition.pop("nested", {}), definition.pop("as_step", False)
        if "branch" in definition:
            return await self._run_branch(context, request, definition, nested)
        return await self._run_whole(context, request, Definition.from_json(definition), nested, as_step)

    async def _run_whole(
        self,
        context: RunContext,
        request: RunRequest,
        definition: Definition,
        nested: Mapping[str, Any],
        as_step: bool,
    ) -> Any:
        scope = Scope(request.input, (step.id for step in iterate_steps(definition.steps)))
        walk = Walk(context, request, scope, self._tools, definition.settings, nested)
        if definition.settings.cache == "workflow" and not as_step:
            return await self._keep_whole(walk, definition)
        output = await walk.run_definition(definition)
        return walk.envelope(output, 0) if as_step else output

    async def _run_branch(
        self,
        context: RunContext,
        request: RunRequest,
        definition: Mapping[str, Any],
        nested: Mapping[str, Any],
    ) -> Any:
        branch = Definition.from_json({"name": "branch", "steps": definition["branch"]})
        scope = Scope(request.input["input"], definition["known"])
        for step_id, entry in request.input["entries"]:
            scope.keep(step_id, entry)
        scope.loop = request.input["loop"]
        before = scope.mark
        settings = Settings.model_validate(definition["settings"])
        walk = Walk(context, request, scope, self._tools, settings, nested)
        await walk.run_all(branch.steps)
        return walk.envelope(nearest_output(scope.list_since(before)), before)

    async def _keep_whole(self, walk: Walk, definition: Definition) -> Any:
        """The output of an equal run that was kept, else this one's, which then is."""
        context, request, cache = walk.frame.context, walk.frame.request, self._tools.cache
        key = cache_key("workflow", request.definition, request.input, sorted(walk.frame.scopes))

        async def find() -> Any:
            kept = await cache.find(key)
            return {} if kept is None else {"value": kept.value}

        facts = {"kind": "cache"}
        found = await context.step("cache/find", find, timeout_s=_CACHE_TIMEOUT_S, facts=facts)
        if found.value:
            walk.frame.tell_calls()
            return found.value["value"]
        output = await walk.run_definition(definition)

        async def keep() -> None:
            await cache.put(key, output, DEFAULT_CACHE_TTL_S)

        await context.step("cache/keep", keep, timeout_s=_CACHE_TIMEOUT_S, facts=facts)
        return output
