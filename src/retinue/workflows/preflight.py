"""Checks a definition against the mesh before a run: skills, constant arguments, and keys that are read.

Only what the mesh knows is a finding. A skill that an agent offers is known, also while the agent does not
answer; so is one of an agent that withdrew its card a short time ago. A finding blocks a run if the step is
sure to run and its failure would end the run; all others are warnings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import DefinitionError, LookupFailedError
from retinue.core.record import Schema
from retinue.core.text import suggest
from retinue.mesh.directory.routing import CAPABILITIES
from retinue.thinking.completion import COMPLETE
from retinue.thinking.toolbox import SEARCH, is_glob, split_pattern
from retinue.workflows.argument_checks import find_argument_faults
from retinue.workflows.definitions.definition import AUTO, Compensation, Definition, Step
from retinue.workflows.definitions.documents import Path
from retinue.workflows.definitions.loading import Loaded
from retinue.workflows.definitions.think import Think
from retinue.workflows.expressions.expression import Expression
from retinue.workflows.expressions.lexer import ExpressionReference, iterate_tokens
from retinue.workflows.expressions.templates import iterate_templates, parse_condition, parse_template
from retinue.workflows.output_shapes import MissingKey, find_missing_key, literal_shape

MAX_READ = 20
"""Agents of one skill whose schemas are read; with more, the schemas of the skill count as unknown."""


@dataclass(frozen=True, slots=True)
class KnownSkill:
    """One skill as the mesh knows it now.

    ``error`` = why no agent offers it; None where one does, or where nobody can know. The schemas are those
    of each agent that offers it; empty where they are unknown.
    """

    error: LookupFailedError | None = None
    inputs: tuple[Schema | None, ...] = ()
    outputs: tuple[Schema | None, ...] = ()


FindSkill = Callable[[str, str | None, str | None], Awaitable[KnownSkill]]
"""The skill of an id, an agent (None = any) and a range of versions."""

MatchesAny = Callable[[str], Awaitable[bool]]
"""Whether a glob names a skill."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault with its place; ``blocks`` = a run would surely fail because of it."""

    fault: DefinitionError
    blocks: bool


_UNKNOWN_INPUT = object()


async def inspect_with_mesh(
    loaded: Loaded,
    nested: Mapping[str, Loaded],
    find_skill: FindSkill,
    *,
    run_input: Any = _UNKNOWN_INPUT,
    find_nested_skill: FindSkill | None = None,
    matches_any: MatchesAny | None = None,
) -> list[Finding]:
    """The findings of a definition and of the workflows ``nested`` in it, in the order of the text.

    Keys of the input are looked up in ``run_input``, the input of a run, or without it in the schema.
    ``find_nested_skill`` finds the skills of nested workflows where they run with other rights. Without
    ``matches_any`` globs of tools are not looked up.
    """
    find_nested = find_nested_skill or find_skill
    findings = await _Inspection(loaded, nested, find_skill, run_input, matches_any).inspect(blocks=True)
    for name, blocks in _list_nested(loaded.definition, nested):
        inspection = _Inspection(nested[name], nested, find_nested, _UNKNOWN_INPUT, matches_any)
        findings += await inspection.inspect(blocks=blocks)
    return findings


@dataclass(frozen=True, slots=True)
class _Situation:
    """Whether the steps of a list surely run, and whether their failure ends the run."""

    blocks: bool = True


class _Inspection:
    """One pass over one definition."""

    def __init__(
        self,
        loaded: Loaded,
        nested: Mapping[str, Loaded],
        find_skill: FindSkill,
        run_input: Any,
        matches_any: MatchesAny | None = None,
    ) -> None:
        self._document = loaded.document
        self._definition = loaded.definition
        self._nested = nested
        self._find_skill = find_skill
        self._run_input = run_input
        self._matches_any = matches_any
        self._outputs: dict[str, tuple[Schema | None, ...]] = {}
        self._findings: list[Finding] = []

    async def inspect(self, *, blocks: bool) -> list[Finding]:
        await self._inspect_steps(self._definition.steps, ("steps",), _Situation(blocks))
        self._inspect_value(self._definition.output, ("output",), blocks)
        return self._findings

    async def _inspect_steps(
        self, steps: Sequence[Step], path: Path, around: _Situation, first: int = 0
    ) -> None:
        skippable = _find_skippable(steps)
        for index, step in enumerate(steps):
            here = (*path, first + index)
            ends_run = step.on_error in (None, "stop")
            if step.on_error is None:
                ends_run = self._definition.settings.on_error == "stop"
            reached = around.blocks and index not in skippable and ends_run
            self._inspect_condition(step.when, (*here, "when"), reached)
            blocks = reached and step.when is None
            await self._inspect_call(step, here, blocks)
            self._inspect_reads(step, here, blocks)
            await self._inspect_nested(step, here, blocks)
            self._note_output(step)
            self._inspect_value(step.transform, (*here, "transform"), False)

    async def _inspect_call(self, step: Step, here: Path, blocks: bool) -> None:
        if step.skill is not None and "${{" not in step.skill:
            known = await self._inspect_skill(step.skill, step, here, blocks)
            self._outputs[step.id] = known.outputs
        if step.think is not None:
            await self._inspect_tools(step.think, (*here, "think"), blocks)
        if step.workflow is not None and step.workflow in self._nested:
            schema = self._nested[step.workflow].definition.input
            self._inspect_arguments(step.workflow, step.with_, (schema,), (*here, "with"), blocks)
        if step.compensate is not None and "${{" not in step.compensate.skill:
            await self._inspect_skill(step.compensate.skill, step.compensate, (*here, "compensate"), blocks)

    async def _inspect_skill(
        self, skill: str, call: Step | Compensation, here: Path, blocks: bool
    ) -> KnownSkill:
        agent = None if call.agent in (None, AUTO) or "${{" in (call.agent or "") else call.agent
        known = await self._find_skill(skill, agent, call.version)
        if known.error is not None:
            self._note((*here, "skill"), known.error.message, known.error.remedy, blocks)
        self._inspect_arguments(skill, call.with_, known.inputs, (*here, "with"), blocks)
        return known

    async def _inspect_tools(self, think: Think, here: Path, blocks: bool) -> None:
        """Note tools that name no skill; that blocks a run only if none of them does, and none is found."""
        named = [(place, pattern) for place, pattern in enumerate(think.tools) if pattern != SEARCH]
        unknown = {
            place: problem
            for place, pattern in named
            if (problem := await self._find_missing_tool(pattern)) is not None
        }
        has_none = len(unknown) == len(named) and SEARCH not in think.tools
        for place, problem in unknown.items():
            self._note((*here, "tools", place), *problem, blocks and has_none)
        model = think.model
        if model is not None and "${{" not in model and model not in (*CAPABILITIES, AUTO):
            known = await self._find_skill(COMPLETE, model, None)
            if known.error is not None:
                remedy = "name a model agent with an API: retinue agents --role execute"
                self._note((*here, "model"), f"agent {model} takes no tools, or is unknown", remedy, False)

    async def _find_missing_tool(self, pattern: str) -> tuple[str, str] | None:
        """The problem and the remedy of a pattern that names no skill; None for others."""
        if is_glob(pattern):
            if self._matches_any is None or await self._matches_any(pattern):
                return None
            return f"no skill is named by {pattern}", "see the skills: retinue find"
        agent, skill = split_pattern(pattern)
        error = (await self._find_skill(skill, agent, None)).error
        return None if error is None else (error.message, error.remedy)

    def _inspect_arguments(
        self, skill: str, arguments: Any, schemas: Sequence[Schema | None], path: Path, blocks: bool
    ) -> None:
        """Note what every agent would refuse in the constant part of the arguments."""
        if not isinstance(arguments, Mapping) or not schemas or None in schemas:
            return
        faults = [find_argument_faults(skill, arguments, schema) for schema in schemas if schema is not None]
        if all(faults):
            for inner, problem in faults[0]:
                self._note(
                    (*path, *inner),
                    f"{skill} refuses it: {problem}",
                    f"see: retinue find --skill {skill}",
                    blocks,
                )

    def _inspect_reads(self, step: Step, here: Path, blocks: bool) -> None:
        for key in ("with", "agent", "role", "prompt", "foreach", "wait_for", "parallel", "think"):
            value: Any = getattr(step, "with_" if key == "with" else key)
            if key == "foreach" and step.foreach is not None:
                value = step.foreach.items
            elif key == "wait_for" and step.wait_for is not None:
                value = step.wait_for.message
            elif key == "parallel" and step.parallel is not None:
                value = [step.parallel.agents, step.parallel.role, step.parallel.prompt]
            elif key == "think" and step.think is not None:
                value = {key: getattr(step.think, key) for key in ("model", "instructions", "prompt")}
            self._inspect_value(value, (*here, key), blocks)
        if step.wait is not None:
            self._inspect_value(step.wait.until, (*here, "wait"), blocks)
        self._inspect_condition(step.switch, (*here, "switch"), blocks)

    async def _inspect_nested(self, step: Step, here: Path, blocks: bool) -> None:
        if step.branches is not None:
            is_all = step.parallel is not None and step.parallel.mode == "all"
            for name, branch in step.branches.items():
                await self._inspect_steps(branch, (*here, "branches", name), _Situation(blocks and is_all))
        elif step.parallel is not None:
            within = _Situation(blocks and step.parallel.mode == "all")
            for index, branch_step in enumerate(step.steps or ()):
                await self._inspect_steps((branch_step,), (*here, "steps"), within, index)
        elif step.steps is not None:
            await self._inspect_steps(step.steps, (*here, "steps"), _Situation(blocks))
        if step.loop is not None:
            self._inspect_condition(step.loop.until, (*here, "loop", "until"), False)

    def _note_output(self, step: Step) -> None:
        """Remember what is known of a step's output."""
        if step.transform is not None:
            self._outputs[step.id] = (literal_shape(step.transform),)
        elif step.think is not None:
            self._outputs[step.id] = (step.think.output or {"type": "string"},)
        elif step.wait_for is not None:
            self._outputs[step.id] = (step.wait_for.schema_,)
        elif step.workflow is not None and step.workflow in self._nested:
            inner = self._nested[step.workflow].definition
            self._outputs[step.id] = (inner.output_schema or literal_shape(inner.output),)

    def _inspect_condition(self, source: str | None, path: Path, blocks: bool) -> None:
        if source is not None:
            self._inspect_expression(parse_condition(source), path, blocks)

    def _inspect_value(self, value: Any, path: Path, blocks: bool) -> None:
        for inner, text in iterate_templates(value):
            for expression in parse_template(text).expressions:
                self._inspect_expression(expression, (*path, *inner), blocks)

    def _inspect_expression(self, expression: Expression, path: Path, blocks: bool) -> None:
        words = {token.text for token in iterate_tokens(expression.source) if token.kind in ("name", "mark")}
        if "has" in words:
            return
        # the rest of these may never be evaluated
        is_strict = not words & {"?", "&", "|"} and not expression.shape.levels
        for reference in expression.shape.references:
            if reference.root == "input" and reference.keys:
                self._inspect_input(reference, path, blocks and is_strict)
            elif reference.root == "steps" and len(reference.keys) > 2 and reference.keys[1] == "output":
                self._inspect_output(reference, path, blocks and is_strict)

    def _inspect_input(self, reference: ExpressionReference, path: Path, blocks: bool) -> None:
        if self._run_input is not _UNKNOWN_INPUT:
            value = self._run_input
            for index, key in enumerate(reference.keys):
                if not isinstance(value, Mapping):
                    return
                if key not in value:
                    place = ".".join(("input", *reference.keys[: index + 1]))
                    self._note(path, f"the input has no {place}", self._declare(reference, value), blocks)
                    return
                value = value[key]
            return
        missing = find_missing_key(self._definition.input, reference.keys)
        if missing is not None:
            declared = f"input declares no {missing.place('input')}"
            self._note(path, declared, self._declare(reference, missing.known), blocks)

    def _declare(self, reference: ExpressionReference, known: Any) -> str:
        near = suggest(reference.keys[0], list(known), limit=1) if len(reference.keys) == 1 else ()
        if near:
            return f"did you mean input.{near[0]}?"
        return "declare it in input.properties and give it, or test it with has(…)"

    def _inspect_output(self, reference: ExpressionReference, path: Path, blocks: bool) -> None:
        step_id, _, *keys = reference.keys
        schemas = self._outputs.get(step_id, ())
        results = [find_missing_key(schema, tuple(keys)) for schema in schemas]
        missing = [key for key in results if key is not None]
        if not schemas or len(missing) < len(results):
            return
        first: MissingKey = missing[0]
        near = suggest(first.key, list(first.known), limit=1)
        remedy = (
            f"did you mean {near[0]}?" if near else f"it has: {', '.join(first.known)[:200] or 'no keys'}"
        )
        is_closed = all(key.is_closed for key in missing)
        place = first.place(f"steps.{step_id}.output")
        self._note(path, f"the output of step {step_id} has no {place}", remedy, blocks and is_closed)

    def _note(self, path: Path, problem: str, remedy: str, blocks: bool) -> None:
        self._findings.append(Finding(self._document.fault(path, problem, remedy), blocks))


def _find_skippable(steps: Sequence[Step]) -> set[int]:
    """The positions that a jump may pass over."""
    places = {step.id: index for index, step in enumerate(steps)}
    skippable: set[int] = set()
    for index, step in enumerate(steps):
        goto = step.on_error.get("goto") if isinstance(step.on_error, Mapping) else None
        for target in (step.then, goto):
            if target in places:
                skippable.update(range(index + 1, places[target]))
    return skippable


def _list_nested(definition: Definition, nested: Mapping[str, Loaded]) -> Iterator[tuple[str, bool]]:
    """Each nested workflow once, and whether its faults block a run: if it runs as a plain outermost step."""
    skippable = _find_skippable(definition.steps)
    sure = {
        step.workflow
        for index, step in enumerate(definition.steps)
        if step.workflow and step.when is None and index not in skippable and step.on_error in (None, "stop")
    }
    is_stopping = definition.settings.on_error == "stop"
    for name in nested:
        yield name, name in sure and is_stopping
