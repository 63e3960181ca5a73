"""``Agent``: makes skills from typed functions."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, overload

from retinue.authoring.context import Context, current_context, running_context
from retinue.authoring.local import local_dispatcher
from retinue.authoring.offering import (
    Offering,
    decorate_with,
    describe,
    name_of,
    names_nearest_option,
    visibility_of,
)
from retinue.authoring.readables import list_facts
from retinue.authoring.results import as_answer, encode_result, has_parts
from retinue.authoring.signatures import Signature, call_in_thread, read_signature
from retinue.core.call import LOCAL, Answer, Call, Outcome, new_id
from retinue.core.errors import InvalidSettingError, UnknownSkillError
from retinue.core.record import (
    QUERY_CAPABILITIES,
    AgentRecord,
    Endpoint,
    Example,
    Hints,
    Schema,
    Skill,
    Trait,
)
from retinue.mesh.artifacts import ArtifactStore, with_links
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.guard.trace_guard import new_trace
from retinue.mesh.permissions import ExposureLists, expose_resources
from retinue.mesh.schema.checks import check_skill

F = TypeVar("F", bound=Callable[..., Any])

MAX_NAME_CHARACTERS = 128
"""A registry stores the card in a repository of this name, which has at most 255 characters."""

_VERSION = re.compile(r"[vV]?[0-9][0-9A-Za-z.+_-]{0,63}")
"""Wider than semver, as cards are parsed leniently; a version without a number could not be sorted."""


class Agent(Offering):
    """An agent: a name, skills, and further facts for its card.

    Add typed functions as skills with ``@agent.skill``; ``skills`` declares skills that an overridden
    ``execute_skill`` runs. ``expose_resources`` are names or globs of resources that MCP clients may read,
    such as ``profile``. With ``logging``, ``ctx.log`` lines are sent to MCP clients. ``deprecated`` is True
    or the reason: other agents are preferred, and callers get a warning. Raises InvalidSettingError for
    values that a card cannot contain.
    """

    _declares_reserved: ClassVar[bool] = False
    """Only the hub's agent declares the reserved skill: as a tool that asks other agents."""

    @names_nearest_option
    def __init__(
        self,
        name: str,
        *,
        version: str | None = None,
        title: str | None = None,
        description: str = "",
        maintainer: str | None = None,
        provider: str | None = None,
        topics: Iterable[str] = (),
        scores: Mapping[str, float] | None = None,
        context_window: int | None = None,
        languages: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        traits: Iterable[Trait] = (),
        skills: Iterable[Skill] = (),
        expose_resources: Iterable[str] = (),
        logging: bool = False,
        deprecated: bool | str = False,
    ) -> None:
        self._name = _check_name(name)
        self.version = _check_version(version)
        self._facts: dict[str, Any] = {
            "title": title,
            "description": description,
            "maintainer": maintainer,
            "provider": provider,
            "topics": tuple(topics),
            "scores": dict(scores) if scores is not None else None,
            "context_window": context_window,
            "languages": tuple(languages),
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "traits": tuple(traits),
            "deprecated": deprecated,
            "resource_globs": {"expose": globs} if (globs := tuple(expose_resources)) else None,
        }
        super().__init__()
        self.logs = logging
        self._lists: ExposureLists | None = None
        self._skills: dict[str, Skill] = {}
        self._functions: dict[str, tuple[Callable[..., Any], Signature]] = {}
        for skill in skills:
            self.declare(skill)

    @property
    def name(self) -> str:
        return self._name

    @property
    def skills(self) -> tuple[Skill, ...]:
        """All skills, including private ones, in the order of their declaration."""
        return self.record().skills

    def record(self, url: str | None = None, *, with_facts: bool = False) -> AgentRecord:
        """The agent record, with ``url`` (the base of ``/execute``) as its endpoint.

        ``with_facts`` adds the profile and the traits to the resources, because endpoints offer them, but a
        card does not list them, since they repeat it.
        """
        record = AgentRecord(
            name=self.name,
            version=self.version,
            endpoints=() if url is None else (Endpoint("execute", url),),
            skills=tuple(self._skills.values()),
            resources=self._readables.resources,
            prompts=self._readables.prompts,
            **self._facts,
        )
        if with_facts:
            record = replace(record, resources=(*record.resources, *list_facts(record)))
        if record.resource_globs is not None:
            shown = expose_resources(record.resources, record.resource_globs["expose"])
            record = replace(record, resources=shown)
        return record if self._lists is None else self._lists.apply(record)

    def expose_by(self, lists: ExposureLists | None) -> None:
        """Set visibility by the lists of an ``agent.json``; None = as set in the code."""
        self._lists = lists
        for kind in ("tools", "resources", "prompts"):
            self._notify(kind)

    def amend(
        self,
        *,
        name: str | None = None,
        version: str | None = None,
        description: str | None = None,
        topics: Iterable[str] | None = None,
        scores: Mapping[str, float] | None = None,
        traits: Iterable[Trait] | None = None,
        deprecated: bool | str | None = None,
        weight: int | None = None,
    ) -> None:
        """Override facts of the Python object by those of an ``agent.json``; None keeps a fact.

        ``weight`` is the share of the calls in per cent that goes to this version (`AgentRecord.weight`).
        """
        if name is not None:
            self._name = _check_name(name)
        self.version = _check_version(version) or self.version
        facts: dict[str, Any] = {
            "description": description,
            "topics": topics,
            "scores": scores,
            "traits": traits,
            "deprecated": deprecated,
            "weight": weight,
        }
        for fact, value in facts.items():
            if value is not None:
                keep_as = tuple if fact in ("topics", "traits") else None
                self._facts[fact] = keep_as(value) if keep_as else value
        self._notify("resources")

    def replace_skills(self, skills: Iterable[Skill]) -> None:
        """Replace skills by changed ones of the same ids, for example with another visibility.

        Raises UnknownSkillError.
        """
        for skill in skills:
            if skill.id not in self._skills:
                raise UnknownSkillError(skill.id)
            self._skills[skill.id] = skill
        self._notify("tools")

    def declare(self, skill: Skill) -> None:
        """Add a skill without a function.

        Raises InvalidSettingError, and SchemaRefusedError for its schemas.
        """
        if skill.id == QUERY_CAPABILITIES and not self._declares_reserved:
            raise InvalidSettingError(
                f"skill {skill.id}",
                "the name is reserved: every agent answers it from its skills and topics",
                remedy="give the skill another id; to decide what is answered, write a function @agent.can",
            )
        if skill.id in self._skills:
            raise InvalidSettingError(
                f"skill {skill.id}", f"{self.name} has it already", remedy="give one of them another id"
            )
        check_skill(skill)
        self._skills[skill.id] = skill
        self._notify("tools")

    def forget_skill(self, skill_id: str) -> None:
        """Remove a skill; raises UnknownSkillError."""
        if self._skills.pop(skill_id, None) is None:
            raise UnknownSkillError(skill_id)
        self._functions.pop(skill_id, None)
        self._notify("tools")

    @overload
    def skill(self, id_: F, /) -> F: ...

    @overload
    def skill(
        self,
        id_: str | None = None,
        /,
        *,
        title: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = (),
        similes: Iterable[str] = (),
        examples: Iterable[str | Example] = (),
        roles: Iterable[str] = (),
        expose: bool = False,
        private: bool = False,
        read_only: bool = False,
        destructive: bool = False,
        idempotent: bool = False,
        open_world: bool = False,
        runs_code: bool = False,
        timeout_s: float | None = None,
        listed: bool = True,
        input_schema: Schema | None = None,
        output_schema: Schema | None = None,
    ) -> Callable[[F], F]: ...

    @names_nearest_option
    def skill(
        self,
        id_: Any = None,
        /,
        *,
        title: str | None = None,
        description: str | None = None,
        tags: Iterable[str] = (),
        similes: Iterable[str] = (),
        examples: Iterable[str | Example] = (),
        roles: Iterable[str] = (),
        expose: bool = False,
        private: bool = False,
        read_only: bool = False,
        destructive: bool = False,
        idempotent: bool = False,
        open_world: bool = False,
        runs_code: bool = False,
        timeout_s: float | None = None,
        listed: bool = True,
        input_schema: Schema | None = None,
        output_schema: Schema | None = None,
    ) -> Any:
        """Make a typed function a skill; as ``@agent.skill``, or with an id and options.

        ``id_`` defaults to the function's name, ``description`` to its docstring. ``tags``, ``similes`` and
        ``examples`` (sentences as callers say them) are further words by which the skill is found;
        ``roles`` are of plan, execute and review. ``expose`` shows the skill to MCP clients, ``private`` to
        this process only; by default agents of the mesh see it. ``read_only``, ``destructive``,
        ``idempotent``, ``open_world`` and ``runs_code`` are hints for callers. ``timeout_s`` limits each call
        in seconds. Without ``listed`` it is not in the tool lists of MCP clients, but found and called all
        the same. ``input_schema`` and ``output_schema`` replace the JSON Schemas made of the types.

        Raises InvalidSettingError for a function that cannot be called with JSON, SchemaRefusedError for an
        unusable schema, and TypeError for an unknown option.
        """

        def add(function: F) -> F:
            skill_id = name_of(function, "skill") if id_ is None or id_ is function else id_
            _check_skill_id(skill_id)
            signature = read_signature(function, skill_id)
            if timeout_s is not None and timeout_s <= 0:
                raise InvalidSettingError(
                    f"skill {skill_id}: timeout_s",
                    f"{timeout_s} is not a positive number",
                    remedy="give seconds above 0",
                )
            self.declare(
                Skill(
                    id=skill_id,
                    description=describe(function, description),
                    title=title,
                    input_schema=signature.input_schema if input_schema is None else input_schema,
                    output_schema=signature.output_schema if output_schema is None else output_schema,
                    tags=tuple(tags),
                    similes=tuple(similes),
                    examples=tuple(Example(text=e) if isinstance(e, str) else e for e in examples),
                    roles=tuple(roles),
                    visibility=visibility_of(expose, private),
                    hints=Hints(read_only, destructive, idempotent, open_world, runs_code),
                    timeout_s=timeout_s,
                    listed=listed,
                    channel=self._may_use_channel(signature, gives_parts=output_schema is not None),
                )
            )
            self._functions[skill_id] = (function, signature)
            return function

        return decorate_with(add, id_, "skill")

    def _may_use_channel(self, signature: Signature, *, gives_parts: bool) -> bool:
        """Whether a call of this function may need more than its value to come back.

        An overridden method may ask through ``current_context()``. A function of no JSON type may return
        parts in addition to the value for which the author wrote a schema (``gives_parts``).
        """
        is_own = type(self).execute_skill is Agent.execute_skill and type(self).run is Agent.run
        return not is_own or signature.context_name is not None or (gives_parts and signature.result is None)

    async def execute_skill(self, skill_id: str, params: Any) -> Any:
        """Run one skill on validated parameters; override it to run declared skills.

        ``current_context()`` returns the context of the running call.
        """
        declared = self._functions.get(skill_id)
        if declared is None:
            raise UnknownSkillError(skill_id)
        function, signature = declared
        context = current_context()
        bound = signature.bind(params, context)
        if signature.is_async:
            value = await function(**bound)
        else:
            running = asyncio.to_thread(call_in_thread, function, **bound)
            value = await (running if context.idempotency_key is None else _run_to_its_end(running))
            if inspect.isawaitable(value):  # a decorator hides that the function is asynchronous
                value = await value
        return signature.encode(value)

    async def run(self, call: Call, context: Context, channel: Channel) -> Answer:
        """Run one admitted call; raises OutputInvalidError for a result that is not JSON."""
        token = running_context.set(context)
        try:
            pending = self.execute_skill(call.skill, call.arguments)
            value = await pending if inspect.isawaitable(pending) else pending
        finally:
            running_context.reset(token)
        if has_parts(value):
            return as_answer(call.skill, value)
        if type(self).execute_skill is not Agent.execute_skill:
            value = encode_result(call.skill, value)
        return Answer(value=value)

    async def call(
        self,
        skill_id: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        channel: Channel | None = None,
        peers: Sequence[Agent] = (),
        artifacts: ArtifactStore | None = None,
    ) -> Any:
        """Call one of the agent's own skills in this process, through the whole dispatch path.

        ``peers`` are the agents that ``ctx.call`` can call, ``artifacts`` holds what ``ctx.save`` saves, such
        as `retinue.testing.MemoryArtifacts`. Returns the value; raises the error of a failed
        call.
        """
        outcome = await self.ask(
            skill_id, arguments, timeout_s=timeout_s, channel=channel, peers=peers, artifacts=artifacts
        )
        return outcome.get()

    async def ask(
        self,
        skill_id: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        channel: Channel | None = None,
        peers: Sequence[Agent] = (),
        artifacts: ArtifactStore | None = None,
    ) -> Outcome:
        """As ``call``, but returns the whole outcome: a failure is data."""
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        call = Call(
            id=new_id(),
            skill=skill_id,
            arguments=with_links(dict(arguments or {})),
            principal=LOCAL,
            endpoint="in-process",
            trace=new_trace(),
            agent=self.name,
            deadline=deadline,
        )
        return await local_dispatcher(self, *peers, artifacts=artifacts).dispatch(
            call, channel or NullChannel()
        )


async def _run_to_its_end(in_thread: Coroutine[Any, Any, Any]) -> Any:
    """Wait for a function in a thread, which cannot be stopped, even if this task is cancelled.

    So a repetition of a call with an idempotency key never runs at the same time as the call itself.
    """
    pending = asyncio.create_task(in_thread)
    while not pending.done():
        try:
            await asyncio.wait((pending,))
        except asyncio.CancelledError:
            continue
    return pending.result()


def _check_skill_id(skill_id: str) -> None:
    if not skill_id or any(c.isspace() or not c.isprintable() for c in skill_id):
        near = "_".join(skill_id.split()) or "my_skill"
        raise InvalidSettingError(
            f"skill {skill_id!r}", "an id has at least one character and no spaces", remedy=f"write {near!r}"
        )


def _check_version(version: str | None) -> str | None:
    if version is not None and not _VERSION.fullmatch(version):
        raise InvalidSettingError(
            "version", f"{version[:80]!r} is not a version", remedy="start with a number, such as 1.0.0"
        )
    return version


def _check_name(name: str) -> str:
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidSettingError(
            "name",
            f"{name[:20]!r}… has {len(name)} characters",
            remedy=f"use at most {MAX_NAME_CHARACTERS}",
        )
    if not name or any(c.isspace() or c in "/@" for c in name):
        raise InvalidSettingError(
            "name",
            f"{name!r} is not an agent name",
            remedy="use letters, digits, dots, dashes and underscores, such as plan-agent",
        )
    return name
