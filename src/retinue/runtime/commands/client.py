"""The mesh of a command: its client, of a hub or of the skills in this process, and the runs it follows."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from retinue.client.hub_choice import HubChoice, choose_known
from retinue.client.hub_dispatch import HubDispatch
from retinue.client.mesh_client import MeshClient
from retinue.client.run_handle import FOLLOW_WAIT_S, result_of
from retinue.core.durations import render_elapsed
from retinue.core.errors import AgentUnreachableError, InvalidSettingError, RetinueError, StoppingError
from retinue.core.json_values import text_of
from retinue.settings import Settings
from retinue.storage.state import State, find_hub_url
from retinue.web.mesh_tokens import is_hub_of

if TYPE_CHECKING:
    from retinue.core.budget import CallLimits
    from retinue.runtime.commands.file_places import FilePlaces
    from retinue.workflows.definitions.loading import Loaded

_TAIL = 60
"""Characters of a text that is being written that are shown: its end."""

_TURN_CHARACTERS = 4_000
"""Characters of the text of a turn of a step ``think`` that are printed when it is complete."""


@asynccontextmanager
async def open_client(
    settings: Settings, state: State, *, hub: HubChoice | None = None, hub_url: str | None = None
) -> AsyncIterator[MeshClient]:
    """A client of ``hub``, else of the hub at ``hub_url``, else of the hub that processes of the state use
    (`find_hub_url`), else of the state without a hub.
    """
    if hub is None and (url := hub_url or find_hub_url(state)) is not None:
        hub = choose_known(state, url)
    async with AsyncExitStack() as stack:
        if hub is not None:
            chosen = hub
            dispatch = HubDispatch(lambda: chosen, state)
            stack.push_async_callback(dispatch.aclose)
            yield MeshClient(dispatch, hub.url, hub.remedy)
        else:
            # imported here, because a command that has a hub does not need these slow imports
            from retinue.runtime.commands.own_mesh import open_own_mesh

            process = await stack.enter_async_context(open_own_mesh(settings, state))
            yield MeshClient(process.dispatcher, None)


@dataclass(frozen=True, slots=True)
class HostingClient:
    """A client of the skills in this process, which executes ``workflow``."""

    client: MeshClient
    workflow: str


@asynccontextmanager
async def open_hosting_client(
    settings: Settings, state: State, file: str, name: str | None, *, hub: HubChoice | None = None
) -> AsyncIterator[HostingClient]:
    """A client of this process, which hosts the workflows of a Python file and runs the one of this name.

    ``hub`` is the hub that the command would use. Raises InvalidSettingError for the hub of another state,
    which does not have the file, and for a name that the file does not have.
    """
    # imported here, because a command that has a hub does not need these slow imports
    from retinue.flows.modules import add_files, choose_workflow
    from retinue.runtime.commands.own_mesh import open_own_mesh

    if hub is not None and not is_hub_of(state, hub.url):
        raise InvalidSettingError(
            "--hub",
            f"{hub.url} does not have {file}, which this process executes",
            remedy=f"leave --hub out; or start retinue worker {file} for that hub, and run it by name",
        )
    workflow = choose_workflow(file, name)
    modules = add_files(settings.workflows.modules, (file,))
    hosting = settings.workflows.model_copy(update={"modules": modules})
    async with open_own_mesh(settings.model_copy(update={"workflows": hosting}), state) as process:
        yield HostingClient(MeshClient(process.dispatcher, None), workflow.name)


CALL_KINDS = ("call", "undo", "review", "model")
"""The kinds of steps that are calls."""


class RunFollower:
    """Starts runs and follows them; prints one line for each step that ends, or waits.

    ``now`` is told of each step that begins and, with ``shows_reports``, of what a step reports. When
    following a run that was started or resumed here is cancelled (Ctrl-C), the run is cancelled too.
    """

    def __init__(
        self,
        client: MeshClient,
        echo: Callable[[str], None],
        now: Callable[[str], None] = lambda text: None,
        *,
        shows_reports: bool = False,
    ) -> None:
        self._client = client
        self._shows_reports = shows_reports
        self._tails: dict[str, str] = {}
        """The ends of the texts that steps write, of which `_TAIL` characters are shown."""
        self._echo = echo
        self._now = now
        self._places: FilePlaces | None = None
        self._failed: Mapping[str, Any] | None = None
        """The last failure, not yet printed: if the run fails with it, its error has the message."""

    async def run(
        self,
        workflow: str | Mapping[str, Any],
        run_input: Any,
        run_id: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        budget: CallLimits | None = None,
    ) -> Any:
        """Start a run and return its output; StepFailedError has the step, its agent and the cause."""
        # the id is chosen here, so that the run can be cancelled even if the start gets no response
        run = uuid.uuid4().hex if run_id is None else run_id
        arguments = {"workflow": workflow, "input": run_input, "run": run}
        arguments |= _given(overrides=overrides, progress=self._shows_reports)
        return await self._own(run, self._client.get("start_run", arguments, **_given(budget=budget)))

    async def run_file(
        self,
        loaded: Loaded,
        run_input: Any,
        run_id: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        budget: CallLimits | None = None,
    ) -> Any:
        """As `run`, of a definition in a file, which errors and warnings name with the line."""
        from retinue.runtime.commands.file_places import FilePlaces

        self._places = FilePlaces.of(loaded)
        return await self.run(loaded.definition.to_json(), run_input, run_id, overrides, budget)

    async def resume(self, run: str) -> Any:
        """Resume a cancelled run and return its output, as `run`."""
        return await self._own(run, self._client.get("resume_run", {"run": run}))

    async def extend(self, run: str, limits: Mapping[str, Any]) -> Any:
        """Continue a run that a limit ended, with higher limits, and return its output, as `run`."""
        return await self._own(run, self._client.get("extend_run", {"run": run, "limits": limits}))

    async def rerun(self, run: str, from_step: str) -> Any:
        """Run again from a step, as a new run, and return its output, as `run`."""
        new = uuid.uuid4().hex
        arguments = {"run": run, "from_step": from_step, "new_run": new}
        return await self._own(new, self._client.get("rerun_run", arguments))

    async def follow(self, run: str, after: int = 0) -> Any:
        """Follow a run without owning it and return its output, as `run`."""
        reported = 0
        while True:
            arguments: dict[str, Any] = {"run": run, "after": after, "wait_s": FOLLOW_WAIT_S}
            if self._shows_reports:
                arguments["progress_after"] = reported
            try:
                reply = await self._client.get("follow_run", arguments, timeout_s=FOLLOW_WAIT_S + 40)
            except RetinueError as error:
                is_stopping = error.type == StoppingError.type
                if is_stopping or isinstance(error, AgentUnreachableError):
                    self._echo(f"run {run} is stored; the next hub or worker resumes it")
                if is_stopping:
                    # the same as from a hub that cuts the look at the run off
                    unreachable = AgentUnreachableError("hub", self._client.hub_url or "", "it was stopping")
                    unreachable.remedy = self._client.remedy or unreachable.remedy
                    raise unreachable from error
                raise
            for report in reply.get("progress", ()):
                self._show_report(report)
            for event in reply["events"]:
                self._echo_event(event, run)
            after, reported = reply["next"], reply.get("next_progress", 0)
            if reply["done"]:
                self._echo_failure(run, whole=reply["status"] not in ("failed", "limited"))
                self._echo_last_answer(reply)
                for line in describe_effects(reply.get("effects")):
                    self._echo(line)
                return result_of(run, reply)

    def _echo_event(self, event: Mapping[str, Any], run: str) -> None:
        if event.get("kind") in CALL_KINDS and event["event"] != "step_finished":
            self._now(f"{event['step']}: {event.get('skill') or '-'} at {event.get('agent') or '-'}")
        elif line := describe(event, run):
            self._echo_failure(run, whole=True)
            if event.get("kind") == "model" and (text := self._tails.pop(event["step"], "").strip()):
                self._echo("\n".join(f"  {_printable(line)}" for line in text.splitlines()))
            if event.get("error"):
                self._failed = event
            else:
                self._echo(line)

    def _show_report(self, report: Mapping[str, Any]) -> None:
        """Show what a step reports: the end of the text that it writes, or a line."""
        step = str(report.get("step", ""))
        if (text := report.get("text")) is not None:
            before = self._tails.get(step, "") if report.get("at") else ""
            self._tails[step] = (before + str(text))[-_TURN_CHARACTERS:]
            line = self._tails[step][-_TAIL:]
        else:
            fraction, message = report.get("fraction"), report.get("message") or ""
            line = message if fraction is None else f"{fraction:.0%} {message}"
        self._now(f"{step}: {line}")

    def _echo_failure(self, run: str, *, whole: bool) -> None:
        """Print the last failure, with its message if ``whole``."""
        if self._failed is not None and (line := describe(self._failed, run, whole=whole)):
            self._echo(line)
        self._failed = None

    def _echo_last_answer(self, reply: Mapping[str, Any]) -> None:
        """Print the last answer of a model that reached a limit."""
        if reply["status"] == "limited":
            answer = reply["error"]["data"]["cause"]["data"].get("answer")
            if answer:
                self._echo(f"  last answer: {text_of(answer)}")

    async def _own(self, run: str, start: Awaitable[Mapping[str, Any]]) -> Any:
        try:
            try:
                started = await start
            except AgentUnreachableError as error:
                self._echo(_explain_unanswered(run, error))
                raise
            self._note_source(started)
            if choice := started.get("choice"):
                self._echo(f"  chosen: {choice['workflow']}, since {choice['because']}")
            return await self.follow(run, started.get("after", 0))
        except RetinueError as error:
            if self._places is None:
                raise
            raise self._places.locate(error) from error.__cause__
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(run))
            raise

    def _note_source(self, started: Mapping[str, Any]) -> None:
        """Keep the places of a stored workflow, and print the warnings of the checks before its run."""
        from retinue.runtime.commands.file_places import FilePlaces

        if source := started.get("source"):
            self._places = FilePlaces(source["name"], source["lines"], frozenset(source["others"]))
        for warning in started.get("warnings", ()):
            place = (self._places or FilePlaces("", {})).name(warning)
            self._echo(f"  warning: {place}: {warning['problem']}")

    async def _cancel(self, run: str) -> None:
        try:
            reply = await self._client.get("cancel_run", {"run": run}, timeout_s=5)
        except RetinueError as error:
            self._echo(f"run {run} could not be cancelled: {error.message}")
            return
        self._echo(f"cancelled; {describe_way_on(run, reply.get('effects'))}")
        for line in describe_effects(reply.get("effects")):
            self._echo(line)


def describe(event: Mapping[str, Any], run: str = "", *, whole: bool = True) -> str | None:
    """One line for the end of a call, or for a wait; None for other events.

    Without ``whole`` the line of a failure omits its message.
    """
    kind = event.get("kind")
    if event["event"] == "log":
        return f"  {describe_log_line(event)}"
    if kind == "wait" and event["event"] == "step_started":
        asked = event.get("message") or f"waits for {event['topic']}"
        if "approval" in event:
            return f"  {event['step']:<18} {asked} — answer: retinue approvals approve {event['approval']}"
        form = describe_value(event.get("schema"))
        return f"  {event['step']:<18} {asked} — answer: retinue signal {run} {event['topic']} VALUE{form}"
    if kind == "timer" and event["event"] == "step_started":
        return f"  {event['step']:<18} waits until {event['until']}"
    if kind in CALL_KINDS and event["event"] == "step_finished":
        seconds = render_elapsed(float(event.get("duration_ms") or 0) / 1000)
        error = event.get("error")
        failed = f"failed: {error['message']}" if error and whole else "failed"
        end = failed if error else f"{seconds:>8}"
        warned = f"  warning: {event['warning']}" if event.get("warning") else ""
        called = f"{event.get('skill') or '-':<16} {event.get('agent') or '-':<14}"
        return f"  {event['step']:<18} {called} {end}{warned}"
    return None


def describe_log_line(event: Mapping[str, Any]) -> str:
    """A line of the log of a run, with its level unless it is ``info``, and its data."""
    level = "" if event.get("level") == "info" else f"{event.get('level')}: "
    data = f"  {orjson.dumps(event['data']).decode()}" if event.get("data") else ""
    return f"log: {level}{_printable(str(event.get('message')))}{data}"


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line)


def describe_value(schema: Mapping[str, Any] | None) -> str:
    """``, VALUE: FORM`` for the value that a signal wants; "" where any value will do."""
    # imported here: a run that waits is rare
    from retinue.workflows.output_shapes import describe_form

    form = describe_form(schema)
    return f", VALUE: {form}" if form else ""


_EFFECTS = {
    "done": "done before",
    "undone": "done and undone",
    "to_undo": "done, still to be undone",
    "unknown": "may have run",
}


def describe_effects(effects: Mapping[str, Any] | None) -> list[str]:
    """One line for each call that had an effect before the run was cancelled."""
    lines = []
    for word, words in _EFFECTS.items():
        calls = (effects or {}).get(word, ())
        lines += [f"  {words}: {call['step']} ({call['skill']} at {call['agent']})" for call in calls]
    return lines


def _explain_unanswered(run: str, error: AgentUnreachableError) -> str:
    """The outcome of an unanswered request to start or resume a run."""
    if not error.sent:
        return f"run {run} was not accepted: the hub did not get the request; nothing was stored"
    return f"the hub did not say whether it accepted run {run}; ask for it: retinue runs {run}"


def describe_way_on(run: str, effects: Mapping[str, Any] | None) -> str:
    """What to do with a cancelled run."""
    what = "finish the undoing with" if (effects or {}).get("to_undo") else "resume it with"
    return f"{what}: retinue resume {run}"


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}
