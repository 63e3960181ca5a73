"""The mesh as a program uses it: finds and calls skills, starts and follows runs."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from cachetools import LRUCache

from retinue.client.arguments import as_links, check_options, check_texts, convert, merge_arguments
from retinue.client.found_skills import FoundSkills
from retinue.client.hub_skills import HubSkills, read_agents
from retinue.client.mesh_client import CallOptions, MeshClient, check_seconds
from retinue.client.received_parts import receive, value_with_parts
from retinue.client.run_handle import RunHandle, lacks_parameter
from retinue.client.updates import CallerChannel, CallUpdate, QuestionHandler
from retinue.core.call import Outcome
from retinue.core.errors import InputRequiredError, InvalidParametersError, InvalidSettingError, Problem
from retinue.core.record import QUERY_CAPABILITIES
from retinue.core.remote_faults import rebuild_error

if TYPE_CHECKING:
    from retinue.client.hub_choice import HubChoice
    from retinue.core.budget import CallLimits
    from retinue.mesh.artifacts import Artifact, ArtifactStore, Content
    from retinue.mesh.asking.fanout import Answers
    from retinue.mesh.asking.query import MatchType
    from retinue.mesh.channel import Channel

T = TypeVar("T")

_SLACK_S = 10.0
"""A caller waits this much longer than a fan-out or an orchestration, because the hub's error says more."""

_ASK_S = 5.0
_ORCHESTRATE_S = 300.0

_MAX_WAITING = 1_000
"""Updates of a stream that its reader has not taken; then the skill's reports wait."""

_FILE_NAME = re.compile(r"[^\n{:]*\.(ya?ml|json)")
"""A text that is no workflow, but probably the name of its file."""

_REMEMBERED = 1_000
_LISTED = 20

Row = Mapping[str, Any]


class MeshConnection:
    """A mesh, reached through its hub; made by `connect` and used as ``async with connect() as mesh``.

    Connections are opened at the first call and kept. Any number of tasks of one event loop may call at the
    same time; a cancelled task cancels its call. Every failure is a `RetinueError`.
    """

    def __init__(
        self,
        client: MeshClient,
        *,
        timeout_s: float,
        on_question: QuestionHandler | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
        choose: Callable[[], HubChoice] | None = None,
        artifacts: ArtifactStore | None = None,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._on_question = on_question
        self._close = close
        self._choose = choose
        self._artifacts = artifacts
        self._hub = HubSkills(client, timeout_s)
        self._schemas: LRUCache[str, Sequence[Row]] = LRUCache(_REMEMBERED)

    async def __aenter__(self) -> Self:
        if self._choose is not None:
            self._choose()  # raises where no hub is named or runs
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; the end of the ``async with`` block does it."""
        if self._close is not None:
            await self._close()

    # agents and skills

    async def find(
        self,
        text: str = "",
        *,
        skill: str | None = None,
        agent: str | None = None,
        version: str | None = None,
        labels: Mapping[str, str] | None = None,
        why: str | None = None,
        limit: int = 5,
    ) -> FoundSkills:
        """Find skills by words, by id or by agent, best first; without any, list all.

        ``version`` is a range, ``labels`` are those of the agent (``*`` = any value). ``why`` names an agent:
        ``why`` of the result explains its place.
        """
        arguments: dict[str, Any] = {
            "query": text,
            "skill": skill,
            "agent": agent,
            "version": version,
            "labels": None if labels is None else dict(labels),
            "why": why,
        }
        arguments = {name: value for name, value in arguments.items() if value}
        return FoundSkills.from_reply(
            await self._hub.read("find_skills", {**arguments, "limit": limit, "detailed": True})
        )

    async def agents(self, text: str = "", *, role: str | None = None) -> list[Row]:
        """All agents, or those that match a description in words, best first.

        A row has ``name``, ``version``, ``status``, ``skills``, ``url`` and more, as those that
        ``retinue agents --json`` prints.
        """
        named = (("query", text.strip()), ("role", role))
        reply = await read_agents(self._hub.read, {name: value for name, value in named if value})
        rows: list[Row] = reply["agents"]
        return rows

    async def show(self, agent: str) -> Row:
        """One agent: its ``card``, its ``listing`` with status and statistics, and its ``versions``.

        ``agent`` is a name, also ``name@1`` for an older major version. Raises UnknownAgentError.
        """
        row: Row = await self._hub.read("show_agent", {"name": agent})
        return row

    async def ask_agents(
        self,
        capabilities: Sequence[str] = (),
        *,
        match: MatchType = "all",
        action: str | None = None,
        agents: Sequence[str] | None = None,
        timeout_s: float = _ASK_S,
    ) -> Answers:
        """Ask agents at once whether they can do something now, and return their ranked answers.

        The question is about ``capabilities`` (``match`` all or any of them), about one ``action``, or
        without both about all capabilities. ``agents`` None asks every agent. ``answers.best`` is the agent
        to call, ``answers.silent`` are those without an answer in time. Raises InvalidParametersError.
        """
        # imported here, because most programs ask no such question
        from retinue.mesh.asking.fanout import Answers
        from retinue.mesh.asking.query import make_query

        query = make_query(capabilities, match=match, action=action)
        if isinstance(agents, str):
            raise InvalidParametersError([Problem("agents", "agents is a text, and not a list of names")])
        arguments = {
            **query.as_payload(),
            "agent": "*" if agents is None else list(agents),
            "timeout_s": timeout_s,
        }
        reply = await self._hub.read(QUERY_CAPABILITIES, arguments, timeout_s=timeout_s + _SLACK_S)
        return Answers.from_json(reply)

    async def publish(self, artifact: str | Mapping[str, Any]) -> str:
        """Publish a workflow or the card of an agent in the hub's registry; returns the reference.

        A text is a workflow in YAML or JSON, a mapping with ``steps`` its definition, another mapping a card.
        It takes the token of the hub's state, or one of joining its mesh. Raises DefinitionError and
        MalformedArtifactError for faults, and RegistryLoginError for another token.
        """
        if not isinstance(artifact, str | Mapping):
            shape = type(artifact).__name__
            problem = f"artifact is a {shape}, and not a text of YAML or a mapping: read a file first"
            raise InvalidParametersError([Problem("artifact", problem)])
        if isinstance(artifact, str) and _FILE_NAME.fullmatch(artifact.strip()):
            problem = (
                f"artifact is {artifact!r:.80}, the name of a file, and not its text: read the file first"
            )
            raise InvalidParametersError([Problem("artifact", problem)])
        if self._choose is None:
            raise InvalidSettingError("publish", "this mesh has no registry", remedy="connect to a hub")
        # imported here, because most programs publish nothing
        from retinue.client.publishing import publish

        return await publish(self._choose(), self._hub, artifact)

    async def imports(self) -> list[Row]:
        """The imported servers: ``name``, ``kind``, ``connected`` or the ``reason``, and tools that wait."""
        rows: list[Row] = (await self._hub.read("list_imports"))["imports"]
        return rows

    # artifacts

    async def save(
        self, content: Content, media_type: str | None = None, *, name: str | None = None
    ) -> Artifact:
        """Save a file in the mesh and return its link, which any skill takes as an argument.

        ``content`` is the path of a file, bytes, or an asynchronous iterator of bytes; it is sent in pieces.
        Without ``media_type`` it is that of the file's name; ``name`` is the file name for readers. Raises
        TooLargeError and QuotaExceededError; then nothing is stored.
        """
        return await self._get_artifacts().save(content, media_type, caller="", name=name)

    def artifact(self, link: Any) -> Artifact:
        """The artifact of a link in a result, as an object or a text; sends nothing.

        Its ``read``, ``open`` and ``save`` get the content. Raises InvalidRequestError for another value.
        """
        # imported here, because most programs use no file
        from retinue.mesh.artifacts import Artifact

        return Artifact.of(link, self._get_artifacts())

    def _get_artifacts(self) -> ArtifactStore:
        if self._artifacts is None:
            raise InvalidSettingError("artifacts", "this mesh has none", remedy="connect to a hub")
        return self._artifacts

    # calls

    @overload
    async def call(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        into: type[T],
        agent: str | None = None,
        version: str | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
        **keywords: Any,
    ) -> T: ...

    @overload
    async def call(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        into: None = None,
        agent: str | None = None,
        version: str | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
        **keywords: Any,
    ) -> Any: ...

    async def call(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        into: Any = None,
        agent: str | None = None,
        version: str | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
        **keywords: Any,
    ) -> Any:
        """Call a skill, found by its id, and return its value; raises the error of a failed call.

        The arguments are a mapping or keywords. ``into`` makes the value a pydantic model, a dataclass or
        another type; ``agent`` names the agent, ``version`` a range such as ``>=1.2,<2``; ``timeout_s``
        replaces the time limit of `connect`; ``budget`` bounds the further calls that the call may cause, or
        ``{"calls": …, "tokens": …, "dollars": …}`` also what the whole chain spends on models.
        With an idempotency ``key`` a lost call is sent again, and runs once. A result of an image, a sound or
        a file alone is a part with ``content`` and ``save(path)``, or a tuple of them.
        """
        outcome = await self._ask(
            skill,
            arguments,
            keywords,
            None if self._on_question is None else CallerChannel(None, self._on_question),
            {"agent": agent, "version": version, "key": key, "timeout_s": timeout_s, "budget": budget},
            into=into,
        )
        value = value_with_parts(outcome.get(), outcome.parts)
        return value if into is None else convert(value, into, skill, self._artifacts)

    async def ask(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        agent: str | None = None,
        version: str | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
        **keywords: Any,
    ) -> Outcome:
        """As `call`, but returns the whole outcome: a failure is data."""
        return await self._ask(
            skill,
            arguments,
            keywords,
            None if self._on_question is None else CallerChannel(None, self._on_question),
            {"agent": agent, "version": version, "key": key, "timeout_s": timeout_s, "budget": budget},
        )

    async def stream(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
        **keywords: Any,
    ) -> AsyncGenerator[CallUpdate, None]:
        """Call a skill and iterate over its progress and log lines; the last update has the outcome.

        A failed call is data of its outcome. Leaving the loop early cancels the call, once the iterator is
        closed (``aclose``, or `contextlib.aclosing`).
        """
        updates: asyncio.Queue[CallUpdate] = asyncio.Queue(_MAX_WAITING)
        options = {"agent": agent, "version": version, "timeout_s": timeout_s, "budget": budget}
        channel = CallerChannel(updates.put, self._on_question)
        calling = asyncio.create_task(self._ask(skill, arguments, keywords, channel, options))
        taking: asyncio.Task[CallUpdate] | None = None
        try:
            while not (calling.done() and updates.empty()):
                taking = taking or asyncio.create_task(updates.get())
                await asyncio.wait((calling, taking), return_when=asyncio.FIRST_COMPLETED)
                if taking.done():
                    update, taking = taking.result(), None
                    yield update
            outcome = await calling
            yield CallUpdate(
                "outcome", outcome.error.message if outcome.error is not None else "", outcome=outcome
            )
        finally:
            for task in (calling, taking):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(task for task in (calling, taking) if task), return_exceptions=True)

    # runs of workflows

    async def start(
        self,
        workflow: str | Mapping[str, Any],
        input: Any = None,  # noqa: A002 - the word of the command line and of the grammar
        *,
        id: str | None = None,  # noqa: A002 - the word of the command line
        agents: Mapping[str, str] | None = None,
        timeouts: Mapping[str, Any] | None = None,
        budget: CallLimits | None = None,
        progress: bool = False,
    ) -> RunHandle:
        """Start a run of a stored workflow, by its name, or of a definition; returns once it is stored.

        The same ``id`` with the same input is the same run, also of another program; without one the run gets
        a random id. ``agents`` and ``timeouts`` (such as ``5m``) replace those of steps, by step id;
        ``budget`` is as of `call`. With ``progress`` the events of the run include what its steps report and
        write. Raises DefinitionError for what would surely fail, and RunConflictError for an id of another
        run.
        """
        run = uuid.uuid4().hex if id is None else id
        arguments: dict[str, Any] = {"workflow": workflow, "input": as_links(input), "run": run}
        overrides = {
            kind: dict(steps) for kind, steps in (("agents", agents), ("timeouts", timeouts)) if steps
        }
        arguments |= {"overrides": overrides} if overrides else {}
        try:
            # the id makes a repetition safe
            await self._hub.start_run(arguments | ({"progress": True} if progress else {}), budget)
        except InvalidParametersError as error:
            if not progress or not lacks_parameter(error, "progress"):
                raise
            await self._hub.start_run(arguments, budget)
        return RunHandle(run, self._hub, progress)

    def run(self, id: str) -> RunHandle:  # noqa: A002 - as of start
        """The run of this id, which another program may have started; sends nothing."""
        return RunHandle(id, self._hub)

    async def runs(
        self, *, status: str | None = None, workflow: str | None = None, limit: int = 50
    ) -> list[Row]:
        """The runs, newest first: ``run``, ``workflow``, ``status``, ``started_at`` and more."""
        arguments = _without_none({"status": status, "workflow": workflow, "limit": limit})
        reply = await self._hub.read("list_runs", arguments)
        rows: list[Row] = reply["runs"]
        return rows

    async def rerun(self, run: str, from_step: str, *, id: str | None = None) -> RunHandle:  # noqa: A002
        """Run again from a step, as a new run with the results before it."""
        return await self.run(run).rerun(from_step, id=id)

    async def workflows(self) -> list[Row]:
        """The workflows that can be started: ``name``, ``description``, ``steps`` and more."""
        rows: list[Row] = (await self._hub.read("list_workflows"))["workflows"]
        return rows

    async def schedules(self) -> list[Row]:
        """The schedules of workflows: ``schedule``, ``workflow``, ``status``, ``next`` and ``last``."""
        rows: list[Row] = (await self._hub.read("list_schedules"))["schedules"]
        return rows

    async def schedule(
        self,
        workflow: str,
        *,
        name: str | None = None,
        cron: str | None = None,
        every: str | None = None,
        timezone: str | None = None,
        input: Any = None,  # noqa: A002 - the word of the grammar
        missed: str | None = None,
        overlap: str | None = None,
    ) -> Row:
        """Start a stored workflow at certain times from now on, with the rights of this caller.

        Options that are None are those of the workflow's own schedule. A schedule of the same name is
        replaced.
        """
        keys = {
            "cron": cron,
            "every": every,
            "timezone": timezone,
            "input": input,
            "missed": missed,
            "overlap": overlap,
        }
        arguments = {
            "name": name,
            "schedule": {key: value for key, value in keys.items() if value is not None},
        }
        row: Row = await self._hub.read(
            "add_schedule",
            {"workflow": workflow, **{key: value for key, value in arguments.items() if value}},
        )
        return row

    async def change_schedule(self, schedule: str, change: str) -> Row:
        """``pause``, ``resume`` or ``remove`` a schedule, or ``run_now``. Raises UnknownScheduleError."""
        row: Row = await self._hub.change("change_schedule", {"schedule": schedule, "change": change})
        return row

    async def orchestrate(
        self,
        prompt: str,
        *,
        agent: str | None = None,
        workflow: str | None = None,
        role: str | None = None,
        cache: bool = True,
        retries: int | None = None,
        parallel: bool | None = None,
        session: str | None = None,
        id: str | None = None,  # noqa: A002 - as of start
        timeout_s: float = _ORCHESTRATE_S,
    ) -> Row:
        """Hand a task to the agents of the mesh: the hub chooses a workflow and its agents.

        ``output`` of the reply is the result; ``agents``, ``duration``, ``fromCache`` and ``usage`` say how
        it was made. ``session`` names a conversation, ``id`` the run. Raises a RetinueError without a model.
        """
        check_seconds(timeout_s)
        preferences = {"agent": agent, "workflow": workflow, "role": role, "cache": cache}
        options = {"timeout": timeout_s * 1000, "retries": retries, "parallel": parallel}
        arguments = {
            "prompt": prompt,
            "preferences": _without_none(preferences),
            "options": _without_none(options),
            **_without_none({"session": session, "run": id}),
        }
        row: Row = await self._hub.change("orchestrate", arguments, timeout_s=timeout_s + _SLACK_S)
        return row

    async def _ask(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None,
        keywords: Mapping[str, Any],
        channel: Channel | None,
        options: Mapping[str, Any],
        *,
        into: Any = None,
    ) -> Outcome:
        links = as_links(merge_arguments(arguments, keywords))
        chosen = _without_none(options)
        check_texts({"skill": skill, "agent": chosen.get("agent", ""), "version": chosen.get("version", "")})
        used = [*chosen, *(() if into is None else ("into",))]
        if arguments is None and used:
            check_options(skill, used, await self._read_schemas(skill))
        timeout_s = chosen.get("timeout_s", self._timeout_s)
        check_seconds(timeout_s)
        outcome = await self._client.ask(
            skill,
            links,
            channel=channel,
            options=CallOptions(**{**chosen, "timeout_s": timeout_s}, setting="timeout_s"),
        )
        if outcome.error is not None:
            error = rebuild_error(outcome.error)
            if isinstance(error, InputRequiredError) and self._on_question is None:
                error.remedy = "answer its questions: connect(on_question=…)"
            return replace(outcome, error=error)
        return receive(outcome)

    async def _read_schemas(self, skill: str) -> Sequence[Row]:
        """The rows of the agents that offer the skill; () if unknown, of which the call itself will tell."""
        rows = self._schemas.get(skill)
        if rows is None:
            arguments = {"skill": skill, "detailed": True, "limit": _LISTED}
            outcome = await self._client.ask(
                "find_skills", arguments, timeout_s=self._timeout_s, is_repeatable=True
            )
            if outcome.error is not None or not isinstance(outcome.value, Mapping):
                return ()
            rows = outcome.value["skills"]
            if rows:
                # an agent that offers the skill may come later
                self._schemas[skill] = rows
        return rows


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
