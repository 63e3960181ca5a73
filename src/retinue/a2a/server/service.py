"""The methods of A2A 1.x over the tasks of this process: each message is one dispatched call.

A call that ends within `SETTLE_S` costs one write to the store and answers at once. A longer one is stored
as working, then again when it asks, and when it has ended.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import structlog

from retinue.a2a.codec import calls as codec
from retinue.a2a.codec.faults import (
    A2aError,
    invalid_parameters,
    task_not_cancelable,
    unsupported_operation,
)
from retinue.a2a.codec.requests import IncomingMessage, SendRequest
from retinue.a2a.codec.tasks import (
    COMPLETED,
    FAILED,
    Event,
    State,
    Task,
    agent_message,
    as_begun,
    is_last,
    new_task,
    state_of,
    with_history,
)
from retinue.a2a.server.choosing import ChosenCall, SkillChoice
from retinue.a2a.server.task_run import Follower, TaskChannel, TaskRun
from retinue.a2a.server.task_table import Sender, TaskTable
from retinue.core.call import Call, Outcome, TraceContext, new_id
from retinue.core.errors import (
    ExecutionFailedError,
    RetinueError,
    UnknownAgentError,
    UnknownSkillError,
)
from retinue.core.remote_faults import describe_for_model
from retinue.mesh.channel import NullChannel
from retinue.mesh.dispatch import Calls
from retinue.mesh.first_answers import FirstAnswers, digest_content
from retinue.web.codec.trace import CALLS_USED_KEY, USAGE_KEY, WARNINGS_KEY
from retinue.web.error_table import a2a_fault
from retinue.web.security import RequestIdentity

_log = structlog.get_logger(__name__)

SETTLE_S = 0.05
"""A call that ends within this time was never a task that anyone could ask for."""

ERROR_KEY = "error"
"""Key in the metadata of the last message of a failed task: code, type and remedy of the error."""

_ENDPOINT = "a2a"
_APPROVES = "approves"
_ANSWER_APPROVAL = "answer_approval"
"""The scope, and the skill of the hub, with which a person answers a call that waits for approval."""
_A2A_STATES: Mapping[str, State] = {"failed": FAILED, "canceled": "TASK_STATE_CANCELED"}

Envelopes = Callable[[dict[str, Any], RequestIdentity, TraceContext | None], Awaitable[dict[str, Any]]]
"""Answers an envelope of seed 000 with another."""


class A2aService:
    """Runs the messages of A2A as calls of this process. Methods raise A2aError and RetinueError.

    ``make_id`` makes the ids of tasks.
    """

    def __init__(
        self,
        calls: Calls,
        tasks: TaskTable,
        *,
        envelopes: Envelopes | None = None,
        make_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._make_id = make_id
        self.tasks = tasks
        self.envelopes = envelopes
        self._calls = calls
        self._first: FirstAnswers[TaskRun] = FirstAnswers()
        self._choice = SkillChoice()

    async def send(self, request: SendRequest, caller: Sender) -> Event:
        """``SendMessage``: the task when it has ended or asks, or a message."""
        replied = await self._reply_to_envelope(request, caller)
        if replied is not None:
            return replied
        run, _ = await self._start_or_continue(request, caller)
        if not request.return_immediately:
            await run.wait_until(lambda: run.is_settled)
        if run.refusal is not None:
            raise run.refusal
        if self._is_message(run, request):
            parts = [part for artifact in run.task.get("artifacts", ()) for part in artifact["parts"]]
            return {"message": agent_message(parts) | {"contextId": run.task["contextId"]}}
        return {"task": with_history(run.task, request.history_length)}

    async def stream(self, request: SendRequest, caller: Sender) -> AsyncIterator[Event]:
        """``SendStreamingMessage``: the task, then its events until it has ended or asks.

        An error before the first event is raised by the first step of the iterator.
        """
        replied = await self._reply_to_envelope(request, caller)
        if replied is not None:
            yield replied
            return
        run, follower = await self._start_or_continue(request, caller, follow=True)
        if run.refusal is not None:
            raise run.refusal
        if follower is None:
            # the task of an earlier message, as it is now
            async for later in self._stream_again(run, request):
                yield later
            return
        try:
            yield {"task": with_history(as_begun(run.task), request.history_length)}
            while (event := await follower.events.get()) is not None:
                yield event
                if is_last(event):
                    return
        finally:
            run.unfollow(follower)

    @staticmethod
    async def _stream_again(run: TaskRun, request: SendRequest) -> AsyncIterator[Event]:
        # a settled task has no further event before its client's next message
        follower = None if run.is_settled else run.follow()
        yield {"task": with_history(run.task, request.history_length)}
        if follower is None:
            return
        try:
            while (event := await follower.events.get()) is not None:
                yield event
                if is_last(event):
                    return
        finally:
            run.unfollow(follower)

    async def subscribe(self, task_id: str, caller: Sender) -> AsyncIterator[Event]:
        """``SubscribeToTask``: the task as it is, then its events until it has ended."""
        run = self.tasks.find_running(task_id, caller)
        if run is None or run.has_ended:
            task = await self.tasks.find(task_id, caller)
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

    async def cancel(self, task_id: str, caller: Sender) -> Task:
        """``CancelTask``: cancels the call and waits until it has stopped."""
        run = self.tasks.find_running(task_id, caller)
        if run is None or run.has_ended:
            raise task_not_cancelable(task_id, state_of(await self.tasks.find(task_id, caller)))
        run.cancel()
        if run.runner is not None:
            await asyncio.wait({run.runner}, timeout=_CANCEL_S)
        return run.task

    def end(self) -> None:
        """End all running tasks, so that their followers' streams end and the server can stop."""
        for run in self.tasks.running:
            run.end(FAILED, "the agent stopped while this task worked; send the message again")
            if run.runner is not None:
                run.runner.cancel()

    async def aclose(self) -> None:
        """End all running tasks, wait for their calls, and close the store."""
        self.end()
        runners = [run.runner for run in self.tasks.running if run.runner is not None]
        if runners:
            await asyncio.wait(runners, timeout=_CANCEL_S)
        await self.tasks.aclose()

    @staticmethod
    def _is_message(run: TaskRun, request: SendRequest) -> bool:
        """Whether the answer is a message, as the client wishes, because the call is done."""
        is_done = state_of(run.task) == COMPLETED
        return is_done and codec.wants_message(request.message, request.metadata)

    async def _reply_to_envelope(self, request: SendRequest, caller: Sender) -> Event | None:
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
        self, request: SendRequest, caller: Sender, *, follow: bool = False
    ) -> tuple[TaskRun, Follower | None]:
        """The task of a message, and its follower; returns when it has settled, or after `SETTLE_S`.

        The same message again has the task of the first one, without a follower.
        """
        message = request.message
        key = (caller.owner, caller.agent or "", message.id)
        # with the depth, because a loop through an agent without ids of its own must end at the guard
        content = digest_content([message.json, request.metadata, caller.trace.depth, request.push])
        first = self._first.find(key, content)
        if first is not None:
            await self._wait_a_moment(first, lambda: first.is_settled)
            return first, None
        waiting = self._choice.find_waiting(message, caller)
        if message.task_id is not None or waiting is not None:
            run = await self._continue(waiting, request, caller, follow=follow)
            self._first.put(key, content, run)
        else:
            # the context of a new conversation is known before its first call, which begins a session
            message = replace(message, context_id=message.context_id or str(uuid.uuid4()))
            request = replace(request, message=message)
            asked = await self._read_call(request, caller)
            if request.push is not None:
                self.tasks.check_push(request.push)
            task = new_task(self._make_id(), message.context_id or "", message.json)
            run = self.tasks.add(task, caller, request.push)
            self._first.put(key, content, run)
            if follow:
                run.first_follower = run.follow()
            run.runner = asyncio.create_task(self._work(run, asked, caller))
            run.runner.add_done_callback(partial(self._end, run, key))
            await self._wait_a_moment(run, lambda: run.is_settled or (follow and run.has_news))
            if run.refusal is None and not self._is_message(run, request):
                await self.tasks.show(run)
        return run, run.first_follower

    async def _continue(
        self, run: TaskRun | None, request: SendRequest, caller: Sender, *, follow: bool
    ) -> TaskRun:
        """Hand a message to the task that waits for it: ``run``, or the one that the message names."""
        message = request.message
        if run is None:
            run = await self._find_named(message, caller)
        if request.push is not None:
            await self.tasks.set_push(run.id, request.push, caller)
        if follow:
            run.first_follower = run.follow()
        if not await self._approve(run, message, caller):
            run.answer(message)
        await self._wait_a_moment(run, lambda: run.is_settled)
        return run

    async def _approve(self, run: TaskRun, message: IncomingMessage, caller: Sender) -> bool:
        """Answer the approval that a task waits for, if its client may; whether the message did that."""
        approval, principal = run.open_approval, caller.identity.principal
        verdict = None if approval is None else codec.read_verdict(message)
        if approval is None or verdict is None or _APPROVES not in principal.scopes:
            return False
        call = Call(
            id=new_id(),
            skill=_ANSWER_APPROVAL,
            arguments={"approval": approval, "verdict": verdict.word, "comment": verdict.comment},
            principal=principal,
            endpoint=_ENDPOINT,
            trace=caller.trace,
        )
        outcome = await self._calls.dispatch(call, NullChannel())
        if outcome.error is None:
            run.end_approval(approval)
        return outcome.error is None

    async def _find_named(self, message: IncomingMessage, caller: Sender) -> TaskRun:
        """The running task that a message names; raises A2aError."""
        assert message.task_id is not None
        run = self.tasks.find_running(message.task_id, caller)
        task = await self.tasks.find(message.task_id, caller) if run is None else run.task
        if message.context_id is not None and message.context_id != task["contextId"]:
            raise invalid_parameters(
                f"contextId {message.context_id} is not that of task {message.task_id}; leave it out"
            )
        if run is None or run.has_ended:
            raise unsupported_operation(f"task {message.task_id} has ended; send a message without taskId")
        return run

    @staticmethod
    async def _wait_a_moment(run: TaskRun, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(SETTLE_S):
                await run.wait_until(condition)
        except TimeoutError:
            pass

    def _end(self, run: TaskRun, key: tuple[str, ...], runner: asyncio.Task[None]) -> None:
        """The call of a task has ended: a repeated message gets the task if its skill ran to the end."""
        self.tasks.remove(run)
        if run.ran_to_end:
            self._first.end(key, run, size_bytes=len(orjson.dumps(run.task)))
        else:
            self._first.forget(key, run)

    async def _read_call(self, request: SendRequest, caller: Sender) -> ChosenCall | codec.Named:
        """The call that a message asks for; what it names, where its client must be asked for the skill."""
        named = codec.read_named(request.message, request.metadata)
        principal = caller.identity.principal
        if named.skill is None and caller.text_skills is not None:
            chosen = await self._choice.choose(named, caller.text_skills, principal)
            return named if chosen is None else chosen
        needs_record = named.skill is None or named.text is not None or bool(named.files)
        skills = await caller.find_skills() if needs_record else ()
        skill_id = codec.choose_skill(named, skills)
        skill = next((offer for offer in skills if offer.id == skill_id), None)
        if skill is None and needs_record and caller.text_skills is not None:
            option = await caller.text_skills.find(skill_id, principal)
            skill = None if option is None else option.skill
        return ChosenCall(skill_id, codec.make_arguments(named, skill))

    @staticmethod
    def _call_of(chosen: ChosenCall, caller: Sender) -> Call:
        return Call(
            id=new_id(),
            skill=chosen.skill,
            arguments=chosen.arguments,
            principal=caller.identity.principal,
            endpoint=_ENDPOINT,
            trace=caller.trace,
            agent=chosen.agent or caller.agent,
            version_range=caller.version_range,
            idempotency_key=caller.idempotency_key,
        )

    async def _work(self, run: TaskRun, asked: ChosenCall | codec.Named, caller: Sender) -> None:
        """Run the call to the end of its task; the client is asked for the skill where it named none."""
        call: Call | None = None
        try:
            chosen = await self._ask(run, asked, caller) if isinstance(asked, codec.Named) else asked
            call = self._call_of(chosen, caller)
            outcome = await self._calls.dispatch(call, TaskChannel(run))
        except asyncio.CancelledError:
            run.end(FAILED, "the call was cancelled")
            raise
        except RetinueError as error:
            self._fail(run, error)
            return
        except Exception:  # noqa: BLE001 - a bug of ours: its text belongs in the log, not in a response
            what = f"task {run.id}" if call is None else f"call {call.id}"
            _log.exception("A2A task failed", failed=what)
            run.ran_to_end = call is not None
            self._fail(run, ExecutionFailedError("internal error", remedy=f"see the log for {what}"))
            return
        metadata = _render_metadata(outcome, with_calls_used=call.trace.mac is not None)
        if metadata:
            run.task["metadata"] = metadata
        failure = outcome.error
        run.ran_to_end = failure is None or isinstance(failure, ExecutionFailedError)
        if failure is None:
            parts = codec.render_result(outcome.value, outcome.parts)
            if chosen.is_plain:
                parts = [*codec.render_answer_text(outcome.value), *parts]
            run.complete(parts, call.skill, COMPLETED)
            return
        if isinstance(failure, UnknownAgentError) and caller.agent is not None and not caller.is_named:
            # this endpoint named the agent, not the caller: a hidden one must not tell its name
            failure = UnknownSkillError(call.skill)
        self._fail(run, failure)

    async def _ask(self, run: TaskRun, named: codec.Named, caller: Sender) -> ChosenCall:
        assert caller.text_skills is not None
        return await self._choice.ask(run, named, caller.text_skills, caller.identity.principal)

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


_CANCEL_S = 5.0
"""How long a cancelled call may take to stop before the client is answered all the same."""


def _render_metadata(outcome: Outcome, *, with_calls_used: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = dict(outcome.meta)
    if outcome.warnings:
        metadata[WARNINGS_KEY] = list(outcome.warnings)
    if outcome.usage is not None:
        metadata[USAGE_KEY] = dict(outcome.usage)
    if with_calls_used and outcome.calls_used is not None:
        metadata[CALLS_USED_KEY] = outcome.calls_used
    return metadata
