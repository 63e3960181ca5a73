"""Handles each performative that opens a conversation, one method for each (seed 000).

Skills run on the dispatch path only, QUERY_CAPABILITIES as the skill ``query_capabilities``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from retinue.core.call import Call, Outcome, Principal, TraceContext, new_id
from retinue.core.errors import RetinueError, StateError, UnknownAgentError, UnknownSkillError
from retinue.core.record import QUERY_CAPABILITIES, AgentRecord, is_visible
from retinue.core.text import suggest
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.dispatch import Calls
from retinue.mesh.first_answers import FirstAnswers, digest_content
from retinue.messages import questions
from retinue.messages.callbacks import Callbacks
from retinue.messages.codec.envelope import ANYBODY, INVALID_PAYLOAD, Envelope, NotUnderstoodError
from retinue.messages.codec.payloads import (
    PerformativeReply,
    Task,
    accepted,
    arguments_of,
    choose_skill,
    failed,
    read_task,
    rejected,
    reply_of_error,
    reply_of_outcome,
    result,
)
from retinue.messages.codec.performatives import PERFORMATIVES
from retinue.messages.conversations import Conversations
from retinue.messages.exchange import MessageExchange, RecordOf
from retinue.messages.journal import TaskJournal, interrupted, subscription_lost
from retinue.messages.subscriptions import Subscriptions, Watch
from retinue.messages.tasks import MessageTask, Tasks
from retinue.web.transport import UrlRefusedError

_NO_TRACE = TraceContext(id="")
_NULL = NullChannel()

Render = Callable[[Envelope, PerformativeReply, str], dict[str, Any]]
"""The message that answers a request with a reply, in the name of an agent."""


class Handlers:
    """The tasks, subscriptions and answers of one process.

    ``own``, ``forwards``, ``watch`` and ``journal`` are as `Receiver` describes them; ``render`` writes
    messages to callbacks. Close it with `aclose`.
    """

    def __init__(
        self,
        own: str,
        calls: Calls,
        record_of: RecordOf,
        callbacks: Callbacks,
        render: Render,
        *,
        forwards: bool,
        watch: Watch | None,
        conversations: Conversations,
        journal: TaskJournal,
    ) -> None:
        self._own = own
        self._calls = calls
        self._record_of = record_of
        self._callbacks = callbacks
        self._render = render
        self._forwards = forwards
        self._watch = watch
        self._conversations = conversations
        self._journal = journal
        self._tasks = Tasks()
        self._first: FirstAnswers[MessageTask] = FirstAnswers()
        self._subscriptions = Subscriptions(
            self._deliver, save=journal.save_subscription, forget=journal.forget
        )

    def recover(self) -> None:
        """Take up the tasks of earlier processes, and send callbacks the missing replies.

        Raises StateError.
        """
        left = self._journal.load()
        now = time.time()
        for task in left.tasks:
            self._tasks.adopt(task, now - (task.ended_at or now))
        for task in left.untold:
            assert task.reply is not None
            self._deliver_end(task, task.reply)
        for subscription in left.subscriptions:
            self._subscriptions.tell_end(subscription, subscription_lost(subscription))

    async def aclose(self) -> None:
        """Cancel the tasks, end the subscriptions, and tell their callbacks; what fails is told later."""
        await self._tasks.aclose(interrupted)
        self._subscriptions.close(subscription_lost)
        await self._callbacks.aclose()
        self._journal.close()

    async def answer(self, exchange: MessageExchange) -> tuple[PerformativeReply, bool, int | None]:
        """The reply, whether further replies follow, and the calls that were used, if known.

        Raises NotUnderstoodError and RetinueError.
        """
        request = exchange.request
        if PERFORMATIVES[request.performative].is_reply:
            return self._take_reply(request), False, None
        if exchange.is_late:
            late = f"reply_by {request.reply_by} has passed — give a later time"
            return failed("timeout", late), False, None
        if request.callback_url is not None:
            if request.performative == "TASK_REQUEST" and not exchange.in_background:
                raise questions.needless_callback(request)
            await self._check_callback(request)
        if request.performative == "TASK_REQUEST":
            return await self._run_task(exchange)
        handlers: Mapping[str, Callable[[MessageExchange], Awaitable[PerformativeReply]]] = {
            "QUERY_CAPABILITIES": self._query_capabilities,
            "QUERY_IF": questions.query_if,
            "QUERY_REF": self._query_ref,
            "PROPOSE": self._propose,
            "SUBSCRIBE": self._subscribe,
            "CANCEL": self._cancel,
        }
        return await handlers[request.performative](exchange), request.performative == "SUBSCRIBE", None

    def _take_reply(self, request: Envelope) -> PerformativeReply:
        """A reply that arrived on its own: it must fit a conversation that this process began."""
        conversation = self._conversations.take(request.in_reply_to, request.performative)
        if conversation is None:
            raise NotUnderstoodError(
                INVALID_PAYLOAD,
                f"in_reply_to {(request.in_reply_to or '')[:100]!r} fits no open conversation in which "
                f"{request.performative} may follow: give the message_id or reply_with of what it answers",
                request,
            )
        if conversation.listener is not None:
            conversation.listener(request)
        return result("received")

    async def _check_callback(self, request: Envelope) -> None:
        assert request.callback_url is not None
        try:
            await self._callbacks.check(request.callback_url)
        except UrlRefusedError as error:
            raise NotUnderstoodError(
                INVALID_PAYLOAD,
                f"callback_url is refused: {error.cause}; give a public http or https url, or ask with "
                "QUERY_REF for the result, or allow private urls with messages.private_callbacks",
                request,
            ) from None

    async def _query_capabilities(self, exchange: MessageExchange) -> PerformativeReply:
        payload = exchange.request.payload
        query = {key: payload[key] for key in ("query_type", "query_parameters") if key in payload}
        target = exchange.target
        if target is None:
            # for anybody: the hub asks every agent that the sender sees (Yellow Pages)
            query, target = {**query, "agent": ANYBODY}, self._own
        outcome = await exchange.run(QUERY_CAPABILITIES, query, target, _NULL, exchange.deadline)
        if isinstance(outcome.error, UnknownAgentError) and self._forwards:
            # another spelling of its name, as in all other messages
            await self._find_record(exchange)
            outcome = await exchange.run(QUERY_CAPABILITIES, query, exchange.target, _NULL, exchange.deadline)
        if outcome.error is not None:
            return reply_of_error(self._conceal(outcome.error, QUERY_CAPABILITIES))
        answer = outcome.value if isinstance(outcome.value, Mapping) else {"answer": outcome.value}
        return PerformativeReply("INFORM_CAPABILITIES", {"status": "success", **answer})

    async def _find_record(self, exchange: MessageExchange) -> AgentRecord | None:
        """The record of the agent that a message is for; None where it is for anybody."""
        if exchange.target is None:
            return None
        try:
            record = await self._record_of(exchange.target, exchange.principal)
        except UnknownAgentError as error:
            raise self._conceal(error, "this agent") from None
        exchange.target = record.name
        return record

    def _conceal(self, error: RetinueError, skill: str) -> RetinueError:
        """Hide the agent's name, because its own endpoint must not reveal it to a caller without access."""
        is_own = not self._forwards and isinstance(error, UnknownAgentError)
        return UnknownSkillError(skill) if is_own else error

    async def _choose(self, exchange: MessageExchange, task: Task) -> tuple[str, dict[str, Any]]:
        """The skill and the arguments of a task; raises UnknownSkillError."""
        record = await self._find_record(exchange)
        if record is None:
            if not task.type:
                raise UnknownSkillError("(none): a task for anybody needs task_type, the id of a skill")
            return task.type, arguments_of(task, None)
        visible = [
            skill for skill in record.skills if is_visible(skill.visibility, exchange.principal.scopes)
        ]
        skill = choose_skill(task, exchange.request.ontology, visible)
        if skill is None and self._forwards and task.type and exchange.request.receiver == "":
            # without a receiver, at the hub: any agent that offers it
            exchange.target = None
            return task.type, arguments_of(task, None)
        if skill is None:
            offered = [skill.id for skill in visible if skill.id != QUERY_CAPABILITIES]
            if task.type:
                raise UnknownSkillError(task.type[:200], near=suggest(task.type[:200], offered))
            raise UnknownSkillError(
                "(none)"
                if not offered
                else f"(none): task_type is missing; give one of {', '.join(offered[:20])}"
            )
        return skill.id, arguments_of(task, skill, exchange.request.conversation_id)

    async def _run_task(self, exchange: MessageExchange) -> tuple[PerformativeReply, bool, int | None]:
        request = exchange.request
        skill, arguments = await self._choose(exchange, read_task(request))
        deadline = exchange.deadline

        async def call(channel: Channel) -> Outcome:
            outcome = await exchange.run(skill, arguments, exchange.target, channel, deadline)
            if outcome.error is None:
                return outcome
            return replace(outcome, error=self._conceal(outcome.error, skill))

        if not exchange.in_background:
            outcome = await call(_NULL)
            return reply_of_outcome(outcome, outcome.call_id), False, outcome.calls_used
        is_sync = exchange.wait_s > 0
        key = (exchange.owner, exchange.target or "", request.message_id)
        content = digest_content([request.sender, request.payload, request.ontology, request.trace])
        task = self._first.find(key, content)
        if task is not None:
            return await self._answer_again(task, exchange)
        task = self._tasks.start(request, exchange.owner, exchange.target or "", call, listens=not is_sync)
        self._first.put(key, content, task)
        assert task.work is not None
        task.work.add_done_callback(lambda _: self._end(task, key))
        await self._wait(task, exchange)
        if task.reply is not None and (is_sync or task.reply.performative != "INFORM_RESULT"):
            # its sender is told now, because it will not ask
            self._tasks.forget(task)
            return task.reply, False, task.calls_used
        try:
            self._journal.save_task(task)
        except StateError:
            # whatever is accepted is stored
            await self._tasks.cancel(task)
            raise
        self._conversations.begin(request, exchange.owner)
        self._conversations.take(request.message_id, "TASK_ACCEPT", exchange.owner)
        if task.reply is not None and task.ended_at is not None:
            self._note_news(task, task.reply)
        else:
            task.observers.append(self._note_news)
        return accepted(task.id, task.comments), True, None

    async def _wait(self, task: MessageTask, exchange: MessageExchange) -> None:
        """Wait for the end of a task, as long as the request waits."""
        assert task.work is not None
        task.waiting += 1
        try:
            await asyncio.wait({task.work}, timeout=max(exchange.wait_s, 0.0))
        except asyncio.CancelledError:
            if task.waiting == 1 and not task.observers:
                # the sender left before it was told of a task, so it cannot ask for it
                await self._tasks.cancel(task)
            raise
        finally:
            task.waiting -= 1

    async def _answer_again(
        self, task: MessageTask, exchange: MessageExchange
    ) -> tuple[PerformativeReply, bool, int | None]:
        """The answer to a request that was sent again: the end of its task, or its id while it runs."""
        await self._wait(task, exchange)
        if task.reply is not None and (
            exchange.wait_s > 0 or task.reply.performative != "INFORM_RESULT" or not self._is_known(task)
        ):
            return task.reply, False, task.calls_used
        return accepted(task.id, task.comments), True, None

    def _is_known(self, task: MessageTask) -> bool:
        """Whether the sender can ask for the result by the id of the task."""
        return self._tasks.find(task.id, task.owner) is task

    def _end(self, task: MessageTask, key: tuple[str, ...]) -> None:
        """A task has ended: the same request again gets its end if the skill ran to it."""
        if task.ran_to_end and task.reply is not None:
            self._first.end(key, task, size_bytes=len(orjson.dumps(task.reply.payload, default=repr)))
        else:
            self._first.forget(key, task)

    def _note_news(self, task: MessageTask, reply: PerformativeReply) -> None:
        self._conversations.take(task.request.message_id, reply.performative, task.owner)
        if reply.performative == "TASK_ACCEPT":
            return
        self._journal.note_end(task, told=task.request.callback_url is None)
        if task.request.callback_url is not None:
            self._deliver_end(task, reply)

    def _deliver_end(self, task: MessageTask, reply: PerformativeReply) -> None:
        """Send the end of a task; after all attempts fail, the sender can still ask for it."""

        def note(arrived: bool) -> None:
            self._journal.note_end(task, told=True)

        self._deliver(task.request, reply, task.agent, note)

    def _deliver(
        self,
        request: Envelope,
        reply: PerformativeReply,
        agent: str,
        done: Callable[[bool], None] | None = None,
    ) -> None:
        assert request.callback_url is not None
        self._callbacks.deliver(request.callback_url, self._render(request, reply, agent), done)

    async def _query_ref(self, exchange: MessageExchange) -> PerformativeReply:
        return await questions.query_ref(exchange, self._find_task(exchange), self._find_record)

    def _find_task(self, exchange: MessageExchange) -> MessageTask | None:
        payload, request = exchange.request.payload, exchange.request
        for reference in (payload.get("task_id"), payload.get("reference"), request.in_reply_to):
            if isinstance(reference, str) and (task := self._tasks.find(reference, exchange.owner)):
                return task
        return None

    async def _propose(self, exchange: MessageExchange) -> PerformativeReply:
        task = read_task(exchange.request)
        skill, arguments = await self._choose(exchange, task)
        record = await self._find_record(exchange)
        return await questions.propose(exchange, record, skill, arguments)

    async def _subscribe(self, exchange: MessageExchange) -> PerformativeReply:
        request = exchange.request
        topic = request.payload.get("topic", "capabilities")
        if request.callback_url is None:
            raise questions.missing_callback(request)
        if topic == "task":
            task = self._find_task(exchange)
            if task is None:
                raise questions.unknown_task(request)
            return self._subscriptions.follow_task(exchange.owner, request, task)
        if topic != "capabilities":
            raise questions.unknown_topic(request)
        await self._find_record(exchange)
        target = exchange.target
        if self._watch is None or target is None:
            return rejected("incapable", "there are no news of anybody: name one agent in receiver.agent_id")

        async def summarise() -> PerformativeReply:
            return await self._summarise(target, exchange.principal)

        return await self._subscriptions.follow_capabilities(
            exchange.owner, request, target, self._watch, summarise
        )

    async def _summarise(self, target: str, principal: Principal) -> PerformativeReply:
        call = Call(
            id=new_id(),
            skill=QUERY_CAPABILITIES,
            arguments={"query_type": "summary"},
            principal=principal,
            endpoint="messages",
            trace=_NO_TRACE,
            agent=target,
        )
        outcome = await self._calls.dispatch(call)
        if outcome.error is not None:
            return reply_of_error(outcome.error)
        return PerformativeReply("INFORM_CAPABILITIES", outcome.value)

    async def _cancel(self, exchange: MessageExchange) -> PerformativeReply:
        request = exchange.request
        task = self._find_task(exchange)
        if task is not None:
            if task.reply is not None:
                return failed("already_ended", f"task {task.id} has ended with {task.reply.performative}")
            await self._tasks.cancel(task)
            return result(f"task {task.id} is cancelled", {"task_id": task.id})
        for name in (request.payload.get("task_id"), request.payload.get("reference"), request.in_reply_to):
            if isinstance(name, str) and (subscription := self._subscriptions.find(name, exchange.owner)):
                self._subscriptions.end(subscription)
                return result(f"subscription {subscription.id} has ended", {"task_id": subscription.id})
        raise questions.unknown_task(request)
