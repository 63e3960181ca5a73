"""Answers messages: one envelope in, one envelope out, whatever carried it (seed 000).

Every endpoint hands its messages to one `Receiver`: ``POST /messages``, the MCP tool ``send_message`` and
an A2A DataPart. Skills run on the dispatch path only, QUERY_CAPABILITIES as the skill ``query_capabilities``.
Whatever is sent, the answer is a message: what cannot be read is NOT_UNDERSTOOD, what breaks is FAILURE.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import structlog

from retinue.core.call import Call, Outcome, Principal, TraceContext, new_id
from retinue.core.errors import (
    NotAllowedError,
    RetinueError,
    StateError,
    UnknownAgentError,
    UnknownSkillError,
)
from retinue.core.record import QUERY_CAPABILITIES, AgentRecord, is_visible
from retinue.core.text import suggest
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.dispatch import Calls
from retinue.mesh.permissions import principal_key
from retinue.messages import questions
from retinue.messages.callbacks import Callbacks
from retinue.messages.codec.envelope import (
    ANYBODY,
    INVALID_PAYLOAD,
    Envelope,
    NotUnderstoodError,
    ontology_warnings,
    parse_envelope,
    render_envelope,
    reply_to,
    same_agent,
)
from retinue.messages.codec.payloads import (
    Reply,
    Task,
    accepted,
    arguments_of,
    choose_skill,
    failed,
    not_json,
    not_understood,
    read_task,
    rejected,
    reply_of_error,
    reply_of_outcome,
    result,
)
from retinue.messages.codec.performatives import PERFORMATIVES
from retinue.messages.codec.signatures import digest_of, find_flaw, sign
from retinue.messages.conversations import Conversations
from retinue.messages.exchange import Answer, Exchange, MessageOptions, RecordOf, RunSkill, check_sender
from retinue.messages.journal import Journal, interrupted, subscription_lost
from retinue.messages.replays import SignedOnce
from retinue.messages.subscriptions import Subscriptions, Watch
from retinue.messages.tasks import MessageTask, Tasks
from retinue.web.codec.trace import CALLS_USED_KEY, ID_KEY, merge_traces, parse_trace_meta
from retinue.web.security import RequestIdentity
from retinue.web.transport import UrlRefusedError

_log = structlog.get_logger(__name__)

_NO_TRACE = TraceContext(id="")
_NULL = NullChannel()


class Receiver:
    """Answers the messages of one process.

    ``own`` is its agent. A process with ``forwards`` (the hub) takes messages for every agent of its
    directory; any other only those for ``own``. ``key`` signs and verifies messages; ``log`` gets the lines
    of the message log; ``journal`` stores accepted tasks. Close it with `aclose`.
    """

    def __init__(
        self,
        own: str,
        calls: Calls,
        record_of: RecordOf,
        callbacks: Callbacks,
        *,
        forwards: bool = False,
        watch: Watch | None = None,
        options: MessageOptions | None = None,
        key: bytes = b"",
        log: Callable[[str], None] | None = None,
        conversations: Conversations | None = None,
        journal: Journal | None = None,
        signed_once: SignedOnce | None = None,
    ) -> None:
        self.own = own
        self.options = options or MessageOptions()
        self._calls = calls
        self._record_of = record_of
        self._callbacks = callbacks
        self._forwards = forwards
        self._watch = watch
        self._key = key
        self._log = log
        self.conversations = Conversations() if conversations is None else conversations
        self.tasks = Tasks()
        self._signed_once = SignedOnce() if signed_once is None else signed_once
        self._journal = Journal() if journal is None else journal
        self.subscriptions = Subscriptions(
            self._deliver, save=self._journal.save_subscription, forget=self._journal.forget
        )

    def recover(self) -> None:
        """Take up what the processes before this one have left, and tell callbacks what they do not know.

        Raises StateError.
        """
        left = self._journal.load()
        now = time.time()
        for task in left.tasks:
            self.tasks.adopt(task, now - (task.ended_at or now))
        for task in left.untold:
            assert task.reply is not None
            self._deliver_end(task, task.reply)
        for one in left.subscriptions:
            self.subscriptions.tell_end(one, subscription_lost(one))

    async def aclose(self) -> None:
        """Cancel the tasks, end the subscriptions, and tell their callbacks; what fails is told later."""
        await self.tasks.aclose(interrupted)
        self.subscriptions.close(subscription_lost)
        await self._callbacks.aclose()
        self._journal.close()

    async def answer_envelope(
        self, envelope: dict[str, Any], identity: RequestIdentity, trace: TraceContext | None
    ) -> dict[str, Any]:
        """The reply to an envelope that another protocol carried."""
        return (await self.answer(envelope, identity, trace)).message

    async def answer(
        self,
        message: Any,
        identity: RequestIdentity,
        trace: TraceContext | None = None,
        *,
        agent: str | None = None,
        wait_s: float | None = None,
        idempotency_key: str | None = None,
        endpoint: str = "messages",
    ) -> Answer:
        """The reply to a decoded message.

        ``agent`` is the one that the endpoint names; ``wait_s`` = how long to wait for the result of a task,
        None = as the options say, and not at all where the message has a ``callback_url``.
        """
        told = parse_trace_meta(message["trace"]) if _has_trace(message) else None
        claimed = merge_traces(trace, told) or _NO_TRACE

        async def run(
            skill: str,
            arguments: Mapping[str, Any],
            target: str | None,
            channel: Channel,
            deadline: float | None,
        ) -> Outcome:
            call = Call(
                id=new_id(),
                skill=skill,
                arguments=dict(arguments),
                principal=identity.principal,
                endpoint=endpoint,
                trace=claimed,
                agent=target,
                deadline=deadline,
                idempotency_key=idempotency_key,
            )
            return await self._calls.dispatch(call, channel)

        return await self.answer_with(message, identity.principal, run, agent=agent, wait_s=wait_s)

    async def answer_with(
        self,
        message: Any,
        principal: Principal,
        run: RunSkill,
        *,
        agent: str | None = None,
        wait_s: float | None = None,
        in_background: bool = True,
    ) -> Answer:
        """As `answer`, with skills run by ``run``."""
        request: Envelope | None = None
        later, calls_used = False, None
        try:
            request = parse_envelope(message, strict=self.options.strict)
            self._note("RECEIVED", message)
            self._check_signature(request, message)
            check_sender(request, principal)
            target = self._target(request, agent)
            if wait_s is None:
                wait_s = self.options.wait_s if request.callback_url is None else 0.0
            exchange = Exchange(
                request, principal, principal_key(principal), target, run, wait_s, in_background
            )
            try:
                reply, later, calls_used = await self._answer(exchange)
            finally:
                agent = exchange.target or agent
        except NotUnderstoodError as error:
            if request is None:
                self._note("RECEIVED", message)
            request = error.envelope or request or unread()
            reply = not_understood(error.reason_code, error.text)
        except RetinueError as error:
            reply = reply_of_error(error)
            if self._forwards and isinstance(error, UnknownAgentError):
                # nobody speaks for an agent that does not exist
                agent = None
        except Exception:  # noqa: BLE001 - whatever is sent, the answer is a message
            _log.exception("a message broke")
            reply = failed("internal_error", "internal error — see the log of this process")
        request = request or unread()
        return Answer(self._render(request, reply, agent, calls_used), later)

    def _render(
        self, request: Envelope, reply: Reply, agent: str | None = None, calls_used: int | None = None
    ) -> dict[str, Any]:
        envelope = reply_to(
            request,
            reply.performative,
            reply.payload,
            sender=agent or self.own,
            warnings=ontology_warnings(request),
        )
        trace = {key: value for key, value in request.trace.items() if key.casefold() == ID_KEY.casefold()}
        if calls_used:
            trace[CALLS_USED_KEY] = calls_used
        message = render_envelope(replace(envelope, trace=trace) if trace else envelope)
        try:
            orjson.dumps(message)
        except TypeError as error:
            return self._render(request, not_json(error), agent)
        if self.options.sign and self._key:
            try:
                message = sign(message, self._key)
            except ValueError as error:
                _log.warning("message not signed", reason=str(error))
        self._note("SENT", message)
        return message

    def _note(self, direction: str, message: Any) -> None:
        if self._log is not None:
            try:
                self._log(f"MCP_MESSAGE_{direction}: {orjson.dumps(message).decode()}")
            except (TypeError, OSError) as error:
                # a full disk, or a number that JSON text cannot carry: the message is answered all the same
                _log.warning("message not logged", reason=str(error))

    def _check_signature(self, request: Envelope, message: Mapping[str, Any]) -> None:
        wanted = self.options.signatures
        if wanted == "off" or (wanted == "verify" and request.signature is None):
            return
        flaw = find_flaw(message, self._key)
        if flaw is not None:
            raise NotAllowedError(
                f"the signature is refused: {flaw}", remedy="sign with the mesh key, or leave signature out"
            )
        flaw = self._signed_once.find_flaw(message.get("timestamp"), digest_of(message))
        if flaw is not None:
            raise NotAllowedError(
                f"the signed message is refused: {flaw}",
                remedy="sign it again, with the time of now; the clock of the signer must not be behind this "
                "machine's",
            )

    def _target(self, request: Envelope, agent: str | None) -> str | None:
        receiver = request.receiver
        if agent is None and self._forwards:
            return None if receiver == ANYBODY else receiver or self.own
        agent = agent or self.own
        if receiver in ("", ANYBODY) or same_agent(receiver, agent.partition("@")[0]) or receiver == agent:
            return agent
        raise NotUnderstoodError(
            INVALID_PAYLOAD,
            "receiver.agent_id names another agent than the one at this endpoint: leave receiver out, or "
            "send the message to the hub's /messages",
            request,
        )

    # one method for each performative that opens a conversation

    async def _answer(self, exchange: Exchange) -> tuple[Reply, bool, int | None]:
        request = exchange.request
        if PERFORMATIVES[request.performative].is_reply:
            return self._take_reply(request), False, None
        if exchange.is_late:
            return (
                failed("timeout", f"reply_by {request.reply_by} has passed — give a later time"),
                False,
                None,
            )
        if request.callback_url is not None:
            if request.performative == "TASK_REQUEST" and not exchange.in_background:
                raise questions.needless_callback(request)
            await self._check_callback(request)
        if request.performative == "TASK_REQUEST":
            return await self._run_task(exchange)
        handlers: Mapping[str, Callable[[Exchange], Awaitable[Reply]]] = {
            "QUERY_CAPABILITIES": self._query_capabilities,
            "QUERY_IF": questions.query_if,
            "QUERY_REF": self._query_ref,
            "PROPOSE": self._propose,
            "SUBSCRIBE": self._subscribe,
            "CANCEL": self._cancel,
        }
        return await handlers[request.performative](exchange), request.performative == "SUBSCRIBE", None

    def _take_reply(self, request: Envelope) -> Reply:
        """A reply that arrived on its own: it must fit a conversation that this process began."""
        found = self.conversations.take(request.in_reply_to, request.performative)
        if found is None:
            raise NotUnderstoodError(
                INVALID_PAYLOAD,
                f"in_reply_to {(request.in_reply_to or '')[:100]!r} fits no open conversation in which "
                f"{request.performative} may follow: give the message_id or reply_with of what it answers",
                request,
            )
        if found.listener is not None:
            found.listener(request)
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

    async def _query_capabilities(self, exchange: Exchange) -> Reply:
        payload = exchange.request.payload
        asked = {key: payload[key] for key in ("query_type", "query_parameters") if key in payload}
        target = exchange.target
        if target is None:
            # for anybody: the hub asks every agent that the sender sees (Yellow Pages)
            asked, target = {**asked, "agent": ANYBODY}, self.own
        outcome = await exchange.run(QUERY_CAPABILITIES, asked, target, _NULL, exchange.deadline)
        if isinstance(outcome.error, UnknownAgentError) and self._forwards:
            # another spelling of its name, as in all other messages
            await self.find_record(exchange)
            outcome = await exchange.run(QUERY_CAPABILITIES, asked, exchange.target, _NULL, exchange.deadline)
        if outcome.error is not None:
            return reply_of_error(self._conceal(outcome.error, QUERY_CAPABILITIES))
        told = outcome.value if isinstance(outcome.value, Mapping) else {"answer": outcome.value}
        return Reply("INFORM_CAPABILITIES", {"status": "success", **told})

    async def find_record(self, exchange: Exchange) -> AgentRecord | None:
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
        """An agent's own endpoint does not tell its name to whom it does not hear."""
        is_own = not self._forwards and isinstance(error, UnknownAgentError)
        return UnknownSkillError(skill) if is_own else error

    async def _choose(self, exchange: Exchange, task: Task) -> tuple[str, dict[str, Any]]:
        """The skill and the arguments of a task; raises UnknownSkillError."""
        record = await self.find_record(exchange)
        if record is None:
            if not task.type:
                raise UnknownSkillError("(none): a task for anybody needs task_type, the id of a skill")
            return task.type, arguments_of(task, None)
        visible = [one for one in record.skills if is_visible(one.visibility, exchange.principal.scopes)]
        skill = choose_skill(task, exchange.request.ontology, visible)
        if skill is None and self._forwards and task.type and exchange.request.receiver == "":
            # addressed to nobody, at the hub: whoever offers it
            exchange.target = None
            return task.type, arguments_of(task, None)
        if skill is None:
            offered = [one.id for one in visible if one.id != QUERY_CAPABILITIES]
            if task.type:
                raise UnknownSkillError(task.type[:200], near=suggest(task.type[:200], offered))
            raise UnknownSkillError(
                "(none)"
                if not offered
                else f"(none): task_type is missing; give one of {', '.join(offered[:20])}"
            )
        return skill.id, arguments_of(task, skill)

    async def _run_task(self, exchange: Exchange) -> tuple[Reply, bool, int | None]:
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
        task = self.tasks.start(request, exchange.owner, exchange.target or "", call, listens=not is_sync)
        assert task.work is not None
        try:
            await asyncio.wait({task.work}, timeout=max(exchange.wait_s, 0.0))
        except asyncio.CancelledError:
            # the sender left before it was told of a task: nobody will ask for it
            await self.tasks.cancel(task)
            raise
        if task.reply is not None and (is_sync or task.reply.performative != "INFORM_RESULT"):
            # its sender is told now: nobody asks for it
            self.tasks.forget(task)
            return task.reply, False, task.calls_used
        try:
            self._journal.save_task(task)
        except StateError:
            # whatever is accepted is stored
            await self.tasks.cancel(task)
            raise
        self.conversations.begin(request, exchange.owner)
        self.conversations.take(request.message_id, "TASK_ACCEPT", exchange.owner)
        if task.reply is not None and task.ended_at is not None:
            self._note_news(task, task.reply)
        else:
            task.observers.append(self._note_news)
        return accepted(task.id, task.comments), True, None

    def _note_news(self, task: MessageTask, reply: Reply) -> None:
        self.conversations.take(task.request.message_id, reply.performative, task.owner)
        if reply.performative == "TASK_ACCEPT":
            return
        self._journal.note_end(task, told=task.request.callback_url is None)
        if task.request.callback_url is not None:
            self._deliver_end(task, reply)

    def _deliver_end(self, task: MessageTask, reply: Reply) -> None:
        """Send the end of a task; one that is not taken after all attempts can be asked for."""

        def note(arrived: bool) -> None:
            self._journal.note_end(task, told=True)

        self._deliver(task.request, reply, task.agent, note)

    def _deliver(
        self, request: Envelope, reply: Reply, agent: str, done: Callable[[bool], None] | None = None
    ) -> None:
        assert request.callback_url is not None
        self._callbacks.deliver(request.callback_url, self._render(request, reply, agent), done)

    async def _query_ref(self, exchange: Exchange) -> Reply:
        return await questions.query_ref(exchange, self._find_task(exchange), self.find_record)

    def _find_task(self, exchange: Exchange) -> MessageTask | None:
        payload, request = exchange.request.payload, exchange.request
        for reference in (payload.get("task_id"), payload.get("reference"), request.in_reply_to):
            if isinstance(reference, str) and (found := self.tasks.find(reference, exchange.owner)):
                return found
        return None

    async def _propose(self, exchange: Exchange) -> Reply:
        task = read_task(exchange.request)
        skill, arguments = await self._choose(exchange, task)
        record = await self.find_record(exchange)
        return await questions.propose(exchange, record, skill, arguments)

    async def _subscribe(self, exchange: Exchange) -> Reply:
        request = exchange.request
        topic = request.payload.get("topic", "capabilities")
        if request.callback_url is None:
            raise questions.missing_callback(request)
        if topic == "task":
            task = self._find_task(exchange)
            if task is None:
                raise questions.unknown_task(request)
            return self.subscriptions.follow_task(exchange.owner, request, task)
        if topic != "capabilities":
            raise questions.unknown_topic(request)
        await self.find_record(exchange)
        target = exchange.target
        if self._watch is None or target is None:
            return rejected("incapable", "there are no news of anybody: name one agent in receiver.agent_id")

        async def summarise() -> Reply:
            return await self._summarise(target, exchange.principal)

        return await self.subscriptions.follow_capabilities(
            exchange.owner, request, target, self._watch, summarise
        )

    async def _summarise(self, target: str, principal: Principal) -> Reply:
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
        return Reply("INFORM_CAPABILITIES", outcome.value)

    async def _cancel(self, exchange: Exchange) -> Reply:
        request = exchange.request
        task = self._find_task(exchange)
        if task is not None:
            if task.reply is not None:
                return failed("already_ended", f"task {task.id} has ended with {task.reply.performative}")
            await self.tasks.cancel(task)
            return result(f"task {task.id} is cancelled", {"task_id": task.id})
        for name in (request.payload.get("task_id"), request.payload.get("reference"), request.in_reply_to):
            if isinstance(name, str) and (found := self.subscriptions.find(name, exchange.owner)):
                self.subscriptions.end(found)
                return result(f"subscription {found.id} has ended", {"task_id": found.id})
        raise questions.unknown_task(request)


def _has_trace(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("trace"), dict)


def unread() -> Envelope:
    """What stands for a message of which nothing could be read."""
    return Envelope(performative="", payload={}, message_id="unknown")
