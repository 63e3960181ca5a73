"""The methods of A2A 1.x over the tasks of this process: each message is one dispatched call.

A call that ends within `SETTLE_S` costs one write to the store and answers at once. A longer one is stored
as working, then again when it asks, and when it has ended.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

from retinue.a2a.codec import calls as codec
from retinue.a2a.codec.faults import (
    A2aError,
    invalid_parameters,
    push_config_not_found,
    task_not_cancelable,
    task_not_found,
    unsupported_operation,
)
from retinue.a2a.codec.requests import ListRequest, Message, PushConfig, SendRequest
from retinue.a2a.codec.tasks import (
    COMPLETED,
    ENDED,
    FAILED,
    SUBMITTED,
    WORKING,
    Event,
    State,
    Task,
    agent_message,
    as_begun,
    is_last,
    new_task,
    set_status,
    state_of,
    with_history,
    without_artifacts,
)
from retinue.a2a.server.push import PushSender
from retinue.a2a.server.task_run import TaskChannel, TaskRun
from retinue.core.call import Call, Outcome, TraceContext, new_id
from retinue.core.errors import (
    BusyError,
    ExecutionFailedError,
    RetinueError,
    StateError,
    UnknownAgentError,
    UnknownSkillError,
)
from retinue.core.record import Skill
from retinue.core.remote_faults import describe_for_model
from retinue.mesh.dispatch import Calls
from retinue.web.codec.trace import CALLS_USED_KEY, USAGE_KEY, WARNINGS_KEY
from retinue.web.error_table import a2a_fault
from retinue.web.security import RequestIdentity
from retinue.web.transport import UrlRefusedError

if TYPE_CHECKING:
    from retinue.storage.task_store import TaskStore

_log = structlog.get_logger(__name__)

MAX_ASKING = 1000
MAX_ASKING_OF_A_CALLER = 100
"""Tasks that wait for an answer at once."""

SETTLE_S = 0.05
"""A call that ends within this time was never a task that anyone could ask for."""

ERROR_KEY = "error"
"""Key in the metadata of the last message of a failed task: code, type and remedy of the error."""

PROCESS_ENDED = "the process that ran this task has ended; send the message again"

_ENDPOINT = "a2a"
_A2A_STATES: Mapping[str, State] = {"failed": FAILED, "canceled": "TASK_STATE_CANCELED"}

Envelopes = Callable[[dict[str, Any], RequestIdentity, TraceContext | None], Awaitable[dict[str, Any]]]
"""Answers an envelope of seed 000 with another."""

FindSkills = Callable[[], Awaitable[Sequence[Skill]]]
"""The skills of the agent that the caller sees; raises RetinueError."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, to which agent; ``agent`` None = whichever has the skill.

    ``is_named``: the caller named the agent, by the path of its request.
    """

    identity: RequestIdentity
    agent: str | None
    trace: TraceContext
    find_skills: FindSkills
    is_named: bool = False
    idempotency_key: str | None = None
    version_range: str | None = None

    @property
    def owner(self) -> str:
        return self.identity.principal.id


class A2aService:
    """The tasks of one process, running and stored. Methods raise A2aError and RetinueError."""

    def __init__(
        self,
        calls: Calls,
        open_store: Callable[[], TaskStore],
        push: PushSender,
        check_url: Callable[[str], None],
        *,
        envelopes: Envelopes | None = None,
    ) -> None:
        self.envelopes = envelopes
        self._calls = calls
        self._open_store = open_store
        self._push = push
        self._check_url = check_url
        self._opening = asyncio.Lock()
        self._store: TaskStore | None = None
        self._running: dict[str, TaskRun] = {}

    async def send(self, request: SendRequest, caller: Caller) -> Event:
        """``SendMessage``: the task when it has ended or asks, or a message."""
        replied = await self._reply_to_envelope(request, caller)
        if replied is not None:
            return replied
        run = await self._start_or_continue(request, caller)
        if not request.return_immediately:
            await run.wait_until(lambda: run.is_settled)
        if run.refusal is not None:
            raise run.refusal
        if self._is_message(run, request):
            parts = [part for artifact in run.task.get("artifacts", ()) for part in artifact["parts"]]
            return {"message": agent_message(parts) | {"contextId": run.task["contextId"]}}
        return {"task": with_history(run.task, request.history_length)}

    async def stream(self, request: SendRequest, caller: Caller) -> AsyncIterator[Event]:
        """``SendStreamingMessage``: the task, then its events until it has ended or asks.

        An error before the first event is raised by the first step of the iterator.
        """
        replied = await self._reply_to_envelope(request, caller)
        if replied is not None:
            yield replied
            return
        run = await self._start_or_continue(request, caller, follow=True)
        if run.refusal is not None:
            raise run.refusal
        follower = run.first_follower
        assert follower is not None
        try:
            yield {"task": with_history(as_begun(run.task), request.history_length)}
            while (event := await follower.events.get()) is not None:
                yield event
                if is_last(event):
                    return
        finally:
            run.unfollow(follower)

    async def subscribe(self, task_id: str, caller: Caller) -> AsyncIterator[Event]:
        """``SubscribeToTask``: the task as it is, then its events until it has ended."""
        run = self._find_running(task_id, caller)
        if run is None or run.has_ended:
            task = await self.find(task_id, caller)
            raise unsupported_operation(
                f"Task {task_id} has ended: it is {state_of(task)}; read it with GetTask"
            )
        follower = run.follow()
        try:
            yield {"task": run.task}
            while (event := await follower.events.get()) is not None:
                yield event
        finally:
            run.unfollow(follower)

    async def find(self, task_id: str, caller: Caller) -> Task:
        """``GetTask``."""
        run = self._find_running(task_id, caller)
        if run is not None:
            return run.task
        store = await self._open()
        task = store.find(task_id, caller.agent or "", caller.owner)
        if task is None:
            raise task_not_found(task_id)
        return task

    async def list_page(self, request: ListRequest, caller: Caller) -> dict[str, Any]:
        """``ListTasks``: the caller's own tasks, the last changed first."""
        store = await self._open()
        page = store.list_page(
            caller.agent or "",
            caller.owner,
            context=request.context_id,
            state=request.state,
            since_ms=None if request.after is None else _read_time_ms(request.after),
            after=_read_token(request.page_token),
            limit=request.page_size,
        )
        tasks = [
            self._running[task["id"]].task if task["id"] in self._running else task for task in page.tasks
        ]
        if not request.with_artifacts:
            tasks = [without_artifacts(task) for task in tasks]
        return {
            "tasks": [with_history(task, request.history_length) for task in tasks],
            "nextPageToken": "" if page.next_after is None else f"{page.next_after[0]}.{page.next_after[1]}",
            "pageSize": request.page_size,
            "totalSize": page.total,
        }

    async def cancel(self, task_id: str, caller: Caller) -> Task:
        """``CancelTask``: cancels the call and waits until it has stopped."""
        run = self._find_running(task_id, caller)
        if run is None or run.has_ended:
            raise task_not_cancelable(task_id, state_of(await self.find(task_id, caller)))
        run.cancel()
        if run.runner is not None:
            await asyncio.wait({run.runner}, timeout=_CANCEL_S)
        return run.task

    async def set_push(self, task_id: str, config: PushConfig, caller: Caller) -> tuple[str, PushConfig]:
        """``CreateTaskPushNotificationConfig``; returns its id and itself."""
        await self.find(task_id, caller)
        self._check_push(config)
        config_id = config.id or task_id
        (await self._open()).save_push(task_id, config_id, _dump_push(config))
        run = self._running.get(task_id)
        if run is not None:
            run.push[config_id] = config
        return config_id, config

    async def find_push(self, task_id: str, config_id: str, caller: Caller) -> PushConfig:
        """``GetTaskPushNotificationConfig``."""
        found = dict(await self.list_push(task_id, caller))
        if config_id not in found:
            raise push_config_not_found(task_id, config_id)
        return found[config_id]

    async def list_push(self, task_id: str, caller: Caller) -> list[tuple[str, PushConfig]]:
        """``ListTaskPushNotificationConfigs``: ids and configurations."""
        await self.find(task_id, caller)
        store = await self._open()
        return [(config_id, PushConfig(**body)) for config_id, body in store.list_push(task_id)]

    async def delete_push(self, task_id: str, config_id: str, caller: Caller) -> None:
        """``DeleteTaskPushNotificationConfig``."""
        await self.find(task_id, caller)
        (await self._open()).delete_push(task_id, config_id)
        run = self._running.get(task_id)
        if run is not None:
            run.push.pop(config_id, None)

    async def recover(self) -> None:
        """Open the store, which ends the tasks of a process that is gone and tells their receivers."""
        await self._open()

    def end(self) -> None:
        """End all running tasks, so that their followers' streams end and the server can stop."""
        for run in list(self._running.values()):
            run.end(FAILED, "the agent stopped while this task worked; send the message again")
            if run.runner is not None:
                run.runner.cancel()

    async def aclose(self) -> None:
        """End all running tasks, wait for their calls, and close the store."""
        self.end()
        runners = [run.runner for run in self._running.values() if run.runner is not None]
        if runners:
            await asyncio.wait(runners, timeout=_CANCEL_S)
        await self._push.aclose()
        if self._store is not None:
            self._store.close()

    @staticmethod
    def _is_message(run: TaskRun, request: SendRequest) -> bool:
        """Whether the answer is a message, as the client wishes, because the call is done."""
        is_done = state_of(run.task) == COMPLETED
        return is_done and codec.wants_message(request.message, request.metadata)

    async def _reply_to_envelope(self, request: SendRequest, caller: Caller) -> Event | None:
        envelope = codec.find_envelope(request.message)
        if envelope is None:
            return None
        if self.envelopes is None:
            raise unsupported_operation('this agent reads no envelopes (data parts with "performative")')
        if caller.is_named and not envelope.get("receiver"):
            envelope = {**envelope, "receiver": {"agent_id": caller.agent}}
        trace = caller.trace if caller.trace.id else None
        reply = agent_message([{"data": await self.envelopes(envelope, caller.identity, trace)}])
        return {"message": {**reply, "contextId": request.message.context_id or str(uuid.uuid4())}}

    async def _start_or_continue(
        self, request: SendRequest, caller: Caller, *, follow: bool = False
    ) -> TaskRun:
        """The running task of a message; returns when it has settled, or after `SETTLE_S`."""
        message = request.message
        if message.task_id is not None:
            return await self._continue(message, request, caller, follow=follow)
        call = await self._make_call(request, caller)
        if request.push is not None:
            self._check_push(request.push)
        task = new_task(str(uuid.uuid4()), message.context_id or str(uuid.uuid4()), message.json)
        run = TaskRun(task, caller.agent or "", caller.owner, self._note, self._check_asking)
        if request.push is not None:
            run.push[request.push.id or run.id] = request.push
        if follow:
            run.first_follower = run.follow()
        self._running[run.id] = run
        run.runner = asyncio.create_task(self._work(run, call, caller))
        run.runner.add_done_callback(lambda _: self._running.pop(run.id, None))
        try:
            async with asyncio.timeout(SETTLE_S):
                await run.wait_until(lambda: run.is_settled or (follow and run.has_news))
        except TimeoutError:
            pass
        if run.refusal is None and not self._is_message(run, request):
            await self._show(run)
        return run

    async def _continue(
        self, message: Message, request: SendRequest, caller: Caller, *, follow: bool
    ) -> TaskRun:
        assert message.task_id is not None
        run = self._find_running(message.task_id, caller)
        task = await self.find(message.task_id, caller) if run is None else run.task
        if message.context_id is not None and message.context_id != task["contextId"]:
            raise invalid_parameters(
                f"contextId {message.context_id} is not that of task {message.task_id}; leave it out"
            )
        if run is None or run.has_ended:
            raise unsupported_operation(f"task {message.task_id} has ended; send a message without taskId")
        if request.push is not None:
            await self.set_push(run.id, request.push, caller)
        if follow:
            run.first_follower = run.follow()
        run.answer(message)
        if not run.is_settled:
            try:
                async with asyncio.timeout(SETTLE_S):
                    await run.wait_until(lambda: run.is_settled)
            except TimeoutError:
                pass
        return run

    async def _make_call(self, request: SendRequest, caller: Caller) -> Call:
        message = request.message
        named = codec.read_named(message, request.metadata)
        needs_record = named.skill is None or named.text is not None or bool(named.files)
        skills = await caller.find_skills() if needs_record else ()
        skill_id = codec.choose_skill(named, skills)
        skill = next((one for one in skills if one.id == skill_id), None)
        return Call(
            id=new_id(),
            skill=skill_id,
            arguments=codec.make_arguments(named, skill),
            principal=caller.identity.principal,
            endpoint=_ENDPOINT,
            trace=caller.trace,
            agent=caller.agent,
            version_range=caller.version_range,
            idempotency_key=caller.idempotency_key,
        )

    async def _work(self, run: TaskRun, call: Call, caller: Caller) -> None:
        """Run the call to the end of its task."""
        try:
            outcome = await self._calls.dispatch(call, TaskChannel(run))
        except asyncio.CancelledError:
            run.end(FAILED, "the call was cancelled")
            raise
        except Exception:  # noqa: BLE001 - a bug of ours: its text belongs in the log, not in a response
            _log.exception("dispatch failed", call_id=call.id, skill=call.skill)
            error = ExecutionFailedError("internal error", remedy=f"see the log for call {call.id}")
            outcome = Outcome(call.id, call.skill, "failed", error=error)
        metadata = _render_metadata(outcome, with_calls_used=call.trace.mac is not None)
        if metadata:
            run.task["metadata"] = metadata
        failure = outcome.error
        if failure is None:
            run.complete(codec.render_result(outcome.value, outcome.parts), call.skill, COMPLETED)
            return
        if isinstance(failure, UnknownAgentError) and caller.agent is not None and not caller.is_named:
            # this endpoint named the agent, not the caller: a hidden one must not tell its name
            failure = UnknownSkillError(call.skill)
        self._fail(run, failure)

    def _fail(self, run: TaskRun, failure: RetinueError) -> None:
        fault = a2a_fault(failure)
        if fault.code is not None and not run.is_shown:
            run.refuse(A2aError.of(failure))
            return
        facts = dict(fault.data) if isinstance(fault.data, Mapping) else {}
        if fault.code is not None:
            facts["code"] = fault.code
        text = describe_for_model(fault.message, facts)
        run.end(
            _A2A_STATES.get(fault.state or "", FAILED), text, {ERROR_KEY: {**facts, "message": fault.message}}
        )

    async def _show(self, run: TaskRun) -> None:
        """The task becomes known to its client, so it is stored."""
        store = await self._open()
        run.is_shown = True
        if state_of(run.task) == SUBMITTED:
            set_status(run.task, WORKING)
        self._save(run)
        for config_id, config in run.push.items():
            store.save_push(run.id, config_id, _dump_push(config))
            if run.is_settled:
                # it settled before it was shown: this is its only event so far
                self._push.send(run.task, {"task": run.task}, config_id, config)

    def _note(self, run: TaskRun, event: Event) -> None:
        """Store a change of state, and push it."""
        if not run.is_shown:
            return
        is_report = not run.is_settled and "artifactUpdate" not in event
        if is_report and "metadata" in event["statusUpdate"]:
            return
        if "artifactUpdate" not in event:
            self._save(run)
        for config_id, config in run.push.items():
            self._push.send(run.task, event, config_id, config)

    def _save(self, run: TaskRun) -> None:
        # imported with the first task: a process that is never asked over A2A needs no store
        from retinue.storage.task_store import StoredTask

        assert self._store is not None
        state = state_of(run.task)
        try:
            self._store.save(
                StoredTask(
                    run.id, run.agent, run.owner, run.task["contextId"], state, state in ENDED, run.task
                )
            )
        except StateError as error:
            # the result is there, and its client gets it; only a later GetTask will not find it
            _log.error("task not stored", task=run.id, reason=error.message)

    def _check_asking(self, run: TaskRun) -> None:
        """Raise BusyError for a question beyond those that may be open: each holds a call for minutes."""
        others = [one for one in self._running.values() if one is not run and one.is_asking]
        own = sum(one.owner == run.owner for one in others)
        if len(others) >= MAX_ASKING or own >= MAX_ASKING_OF_A_CALLER:
            raise BusyError("too many tasks wait for an answer", 10.0)

    def _check_push(self, config: PushConfig) -> None:
        try:
            self._check_url(config.url)
        except UrlRefusedError as error:
            raise invalid_parameters(f"the push notification url is refused: {error}") from error

    def _find_running(self, task_id: str, caller: Caller) -> TaskRun | None:
        run = self._running.get(task_id)
        if run is None or not run.is_shown or (run.agent, run.owner) != (caller.agent or "", caller.owner):
            return None
        return run

    async def _open(self) -> TaskStore:
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    store = await asyncio.to_thread(self._open_store)
                    lost = store.end_unfinished(_end_lost)
                    self._store = store
                    for task_id in lost:
                        self._tell_lost(store, task_id)
        return self._store

    def _tell_lost(self, store: TaskStore, task_id: str) -> None:
        for config_id, body in store.list_push(task_id):
            task = store.read(task_id)
            if task is not None:
                self._push.send(task, {"task": task}, config_id, PushConfig(**body))


_CANCEL_S = 5.0
"""How long a cancelled call may take to stop before the client is answered all the same."""


def _end_lost(task: Task) -> tuple[str, Task]:
    set_status(task, FAILED, agent_message([{"text": PROCESS_ENDED}], task))
    return FAILED, task


def _render_metadata(outcome: Outcome, *, with_calls_used: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = dict(outcome.meta)
    if outcome.warnings:
        metadata[WARNINGS_KEY] = list(outcome.warnings)
    if outcome.usage is not None:
        metadata[USAGE_KEY] = dict(outcome.usage)
    if with_calls_used and outcome.calls_used is not None:
        metadata[CALLS_USED_KEY] = outcome.calls_used
    return metadata


def _dump_push(config: PushConfig) -> dict[str, Any]:
    return {
        "url": config.url,
        "id": config.id,
        "token": config.token,
        "scheme": config.scheme,
        "credentials": config.credentials,
        "legacy": config.legacy,
    }


def _read_time_ms(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise invalid_parameters(
            "statusTimestampAfter is no time; write it as 2026-01-31T12:00:00Z"
        ) from None
    return int(found.timestamp() * 1000)


def _read_token(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    stamp, dot, task_id = token.partition(".")
    if not (dot and stamp.isdecimal() and len(stamp) < _LONGEST_STAMP and stamp.isascii()):
        raise invalid_parameters("pageToken is not one of this list; leave it out for the first page")
    return int(stamp), task_id


_LONGEST_STAMP = 17
