"""The command line's client of the mesh: calls skills, and starts and follows runs of workflows.

Calls go to ``/execute`` of the running hub; without a hub, the same skills run in this process.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.core.call import LOCAL, Call, Outcome, new_id
from retinue.core.durations import render_elapsed
from retinue.core.errors import (
    AgentUnreachableError,
    CallCancelledError,
    CallTimedOutError,
    ExecutionFailedError,
    RetinueError,
    StepFailedError,
    StoppingError,
)
from retinue.mesh.guard.trace_guard import new_trace
from retinue.rpc.client import HubCalls
from retinue.runtime.commands.hub_choice import HubChoice, choose_known
from retinue.settings import Settings
from retinue.storage.state import State, find_hub_url
from retinue.web.addresses import is_loopback_url
from retinue.web.mesh_tokens import MeshSigner

if TYPE_CHECKING:
    from retinue.mesh.channel import Channel
    from retinue.mesh.dispatch import Calls  # with schemas and routing, which the hub applies
    from retinue.runtime.commands.file_places import FilePlaces
    from retinue.web.transport import HttpRequester
    from retinue.workflows.definitions.loading import Loaded

_FOLLOW_WAIT_S = 20.0
"""How long one ``follow_run`` call waits for a new event."""

_TAIL = 60
"""Characters of a text that is being written that are shown: its end."""


@dataclass(slots=True)
class MeshClient:
    """Calls skills of the mesh; ``hub_url`` is None if they run in this process."""

    calls: Calls
    hub_url: str | None

    async def ask(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float = 60.0,
        channel: Channel | None = None,
    ) -> Outcome:
        """Call a skill; a failure is part of the outcome.

        ``channel`` is told of progress and asked questions; the time limit pauses while one is open.
        """
        call = Call(
            id=new_id(),
            skill=skill,
            arguments=dict(arguments or {}),
            principal=LOCAL,
            endpoint="cli",
            trace=new_trace(),
            agent=agent,
            version_range=version,
            deadline=None if channel is not None else asyncio.get_running_loop().time() + timeout_s,
        )
        if channel is None:
            return await self.calls.dispatch(call)
        from retinue.mesh.channel import run_within

        try:
            return await run_within(timeout_s, channel, lambda pausing: self.calls.dispatch(call, pausing))
        except TimeoutError:
            error = CallTimedOutError(skill, timeout_s, layer="caller", setting="the caller's timeout")
            return Outcome(call.id, skill, "failed", agent=agent, error=error)

    async def get(self, skill: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The value; raises the error of the call."""
        return (await self.ask(skill, arguments, **options)).get()


@asynccontextmanager
async def open_client(
    settings: Settings,
    state: State,
    *,
    hub: HubChoice | None = None,
    hub_url: str | None = None,
    is_interactive: bool = False,
) -> AsyncIterator[MeshClient]:
    """A client of ``hub``, else of the hub at ``hub_url``, else of the hub that processes of the state use
    (`find_hub_url`), else of the state without a hub.

    Only an interactive one passes the channel of a call on to the hub.
    """
    if hub is None and (url := hub_url or find_hub_url(state)) is not None:
        hub = choose_known(state, url)
    async with AsyncExitStack() as stack:
        if hub is not None and is_interactive:
            # imported here: the clients of streams take longer to load than most commands to run
            from retinue.runtime.joined_mesh import interactive_calls
            from retinue.web.http_client import HttpClient

            web = await stack.enter_async_context(HttpClient())
            calls = HubCalls(web, hub.url, joined=hub.token, signer=_signer_for(state, hub))
            yield MeshClient(interactive_calls(web, hub.url, calls, _signer_for(state, hub)), hub.url)
        elif hub is not None:
            http = await stack.enter_async_context(_open_http(hub.url))
            calls = HubCalls(http, hub.url, joined=hub.token, signer=_signer_for(state, hub))
            yield MeshClient(calls, hub.url)
        else:
            # imported here, because a command that has a hub does not need these slow imports
            from retinue.runtime.commands.own_mesh import open_own_mesh

            process = await stack.enter_async_context(open_own_mesh(settings, state))
            yield MeshClient(process.dispatcher, None)


def _signer_for(state: State, hub: HubChoice) -> MeshSigner | None:
    """Signs traces for a hub of this mesh; a signature means nothing to others."""
    return MeshSigner.of(state) if hub.is_member else None


def _open_http(url: str) -> AbstractAsyncContextManager[HttpRequester]:
    if url.startswith("http://") and is_loopback_url(url):
        from retinue.web.fast.plain_http_client import PlainHttpClient

        return PlainHttpClient()
    # imported here, because aiohttp takes a third of the time of a command
    from retinue.web.http_client import HttpClient

    return HttpClient()


CALL_KINDS = ("call", "undo", "review")
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
        """The ends of the texts that steps write."""
        self._echo = echo
        self._now = now
        self._places: FilePlaces | None = None
        self._failed: Mapping[str, Any] | None = None
        """The last failure, not yet printed: if the run fails with it, its error has the message."""

    async def run(
        self,
        workflow: str | Mapping[str, Any],
        given: Any,
        run_id: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Any:
        """Start a run and return its output; StepFailedError has the step, its agent and the cause."""
        # the id is chosen here, so that the run can be cancelled even if the start gets no response
        run = uuid.uuid4().hex if run_id is None else run_id
        asked = {"workflow": workflow, "input": given, "run": run}
        asked |= _given(overrides=overrides, progress=self._shows_reports)
        return await self._own(run, self._client.get("start_run", asked))

    async def run_file(
        self,
        loaded: Loaded,
        given: Any,
        run_id: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Any:
        """As `run`, of a definition in a file, which errors and warnings name with the line."""
        from retinue.runtime.commands.file_places import FilePlaces

        self._places = FilePlaces.of(loaded)
        return await self.run(loaded.definition.to_json(), given, run_id, overrides)

    async def resume(self, run: str) -> Any:
        """Resume a cancelled run and return its output, as `run`."""
        return await self._own(run, self._client.get("resume_run", {"run": run}))

    async def rerun(self, run: str, from_step: str) -> Any:
        """Run again from a step, as a new run, and return its output, as `run`."""
        new = uuid.uuid4().hex
        asked = {"run": run, "from_step": from_step, "new_run": new}
        return await self._own(new, self._client.get("rerun_run", asked))

    async def follow(self, run: str, after: int = 0) -> Any:
        """Follow a run without owning it and return its output, as `run`."""
        reported = 0
        while True:
            asked: dict[str, Any] = {"run": run, "after": after, "wait_s": _FOLLOW_WAIT_S}
            if self._shows_reports:
                asked["progress_after"] = reported
            try:
                reply = await self._client.get("follow_run", asked, timeout_s=_FOLLOW_WAIT_S + 40)
            except RetinueError as error:
                is_stopping = error.type == StoppingError.type
                if is_stopping or isinstance(error, AgentUnreachableError):
                    self._echo(f"run {run} is stored; the next hub or worker resumes it")
                if is_stopping:
                    # the same as from a hub that cuts the look at the run off
                    url = self._client.hub_url or ""
                    raise AgentUnreachableError("hub", url, "it was stopping") from error
                raise
            for event in reply["events"]:
                self._echo_event(event, run)
            for report in reply.get("progress", ()):
                self._show_report(report)
            after, reported = reply["next"], reply.get("next_progress", 0)
            if reply["done"]:
                self._echo_failure(run, whole=reply["status"] != "failed")
                for line in describe_effects(reply.get("effects")):
                    self._echo(line)
                return _result(run, reply)

    def _echo_event(self, event: Mapping[str, Any], run: str) -> None:
        if event.get("kind") in CALL_KINDS and event["event"] != "step_finished":
            self._now(f"{event['step']}: {event.get('skill') or '-'} at {event.get('agent') or '-'}")
        elif line := describe(event, run):
            self._echo_failure(run, whole=True)
            if event.get("error"):
                self._failed = event
            else:
                self._echo(line)

    def _show_report(self, report: Mapping[str, Any]) -> None:
        """Show what a step reports: the end of the text that it writes, or a line."""
        step = str(report.get("step", ""))
        if (text := report.get("text")) is not None:
            before = self._tails.get(step, "") if report.get("at") else ""
            self._tails[step] = said = (before + str(text))[-_TAIL:]
        else:
            fraction, message = report.get("fraction"), report.get("message") or ""
            said = message if fraction is None else f"{fraction:.0%} {message}"
        self._now(f"{step}: {said}")

    def _echo_failure(self, run: str, *, whole: bool) -> None:
        """Print the last failure, with its message if ``whole``."""
        if self._failed is not None and (line := describe(self._failed, run, whole=whole)):
            self._echo(line)
        self._failed = None

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
    if kind == "wait" and event["event"] == "step_started":
        asked = event.get("message") or f"waits for {event['topic']}"
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
    for word, said in _EFFECTS.items():
        calls = (effects or {}).get(word, ())
        lines += [f"  {said}: {one['step']} ({one['skill']} at {one['agent']})" for one in calls]
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


def _result(run: str, reply: Mapping[str, Any]) -> Any:
    if reply["status"] == "done":
        return reply.get("output")
    if reply["status"] == "cancelled":
        raise CallCancelledError(f"run {run}")
    error = reply.get("error") or {}
    if error.get("type") == StepFailedError.type:
        raise StepFailedError.from_data(error["data"])
    raise ExecutionFailedError(
        str(error.get("message", "no reason given")), remedy=str(error.get("remedy", ""))
    )
