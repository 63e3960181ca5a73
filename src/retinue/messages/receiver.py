"""Answers messages over every carrier: one envelope in, one envelope out (seed 000).

Every endpoint hands its messages to one `Receiver`: ``POST /messages``, the MCP tool ``send_message`` and an
A2A DataPart. Skills run on the dispatch path only, QUERY_CAPABILITIES as the skill ``query_capabilities``.
Every answer is a message: NOT_UNDERSTOOD for an unreadable one, FAILURE for a failed call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import structlog

from retinue.core.call import Call, Outcome, Principal, TraceContext, new_id
from retinue.core.errors import NotAllowedError, RetinueError, UnknownAgentError
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Calls
from retinue.mesh.permissions import principal_key
from retinue.messages.callbacks import Callbacks
from retinue.messages.codec.envelope import (
    ANYBODY,
    INVALID_PAYLOAD,
    Envelope,
    NotUnderstoodError,
    describe_envelope,
    ontology_warnings,
    parse_envelope,
    render_envelope,
    reply_to,
    same_agent,
)
from retinue.messages.codec.payloads import (
    PerformativeReply,
    failed,
    not_json,
    not_understood,
    reply_of_error,
)
from retinue.messages.codec.signatures import digest_of, find_flaw, sign
from retinue.messages.conversations import Conversations
from retinue.messages.exchange import (
    MessageExchange,
    MessageOptions,
    MessageReply,
    OnMessage,
    RecordOf,
    RunSkill,
    check_sender,
)
from retinue.messages.handlers import Handlers
from retinue.messages.journal import TaskJournal
from retinue.messages.replays import SignedOnce
from retinue.messages.subscriptions import Watch
from retinue.web.codec.merged_traces import merge_traces
from retinue.web.codec.trace import CALLS_USED_KEY, ID_KEY, parse_trace_meta
from retinue.web.security import RequestIdentity

_log = structlog.get_logger(__name__)

_NO_TRACE = TraceContext(id="")


class Receiver:
    """Answers the messages of one process.

    ``own`` is its agent. A process with ``forwards`` (the hub) takes messages for every agent of its
    directory; any other only those for ``own``. ``key`` signs and verifies messages; ``log`` gets the lines
    of the message log; ``journal`` stores accepted tasks; ``on_message`` is told of each understood message.
    Close it with `aclose`.
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
        journal: TaskJournal | None = None,
        signed_once: SignedOnce | None = None,
        on_message: OnMessage | None = None,
    ) -> None:
        self.own = own
        self.options = options or MessageOptions()
        self._calls = calls
        self._forwards = forwards
        self._key = key
        self._log = log
        self.conversations = Conversations() if conversations is None else conversations
        self._on_message = on_message
        self._signed_once = SignedOnce() if signed_once is None else signed_once
        self._handlers = Handlers(
            own,
            calls,
            record_of,
            callbacks,
            self._render,
            forwards=forwards,
            watch=watch,
            conversations=self.conversations,
            journal=TaskJournal() if journal is None else journal,
        )

    def recover(self) -> None:
        """Take up the tasks of earlier processes, and tell their callbacks the ends; raises StateError."""
        self._handlers.recover()

    async def aclose(self) -> None:
        """Cancel the tasks, end the subscriptions, and tell their callbacks."""
        await self._handlers.aclose()

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
    ) -> MessageReply:
        """The reply to a decoded message.

        ``agent`` is the agent of the endpoint; ``wait_s`` = how long to wait for the result of a task, None =
        as the options say, and not at all where the message has a ``callback_url``.
        """
        stated = parse_trace_meta(message["trace"]) if _has_trace(message) else None
        claimed = merge_traces(trace, stated) or _NO_TRACE

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

        return await self.answer_with(
            message, identity.principal, run, agent=agent, wait_s=wait_s, trace=claimed
        )

    async def answer_with(
        self,
        message: Any,
        principal: Principal,
        run: RunSkill,
        *,
        agent: str | None = None,
        wait_s: float | None = None,
        in_background: bool = True,
        trace: TraceContext | None = None,
    ) -> MessageReply:
        """As `answer`, with skills run by ``run``."""
        request: Envelope | None = None
        later, calls_used = False, None
        try:
            request = parse_envelope(message, strict=self.options.strict)
            self._note("RECEIVED", message)
            self._check_signature(request, message)
            check_sender(request, principal)
            target = self._target(request, agent)
            if self._on_message is not None:
                await self._on_message(describe_envelope(request), principal, trace)
            if wait_s is None:
                wait_s = self.options.wait_s if request.callback_url is None else 0.0
            exchange = MessageExchange(
                request, principal, principal_key(principal), target, run, wait_s, in_background
            )
            try:
                reply, later, calls_used = await self._handlers.answer(exchange)
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
                # no reply can come from an agent that does not exist
                agent = None
        except Exception:  # noqa: BLE001 - whatever is sent, the answer is a message
            _log.exception("a message broke")
            reply = failed("internal_error", "internal error — see the log of this process")
        request = request or unread()
        return MessageReply(self._render(request, reply, agent, calls_used), later)

    def _render(
        self,
        request: Envelope,
        reply: PerformativeReply,
        agent: str | None = None,
        calls_used: int | None = None,
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


def _has_trace(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("trace"), dict)


def unread() -> Envelope:
    """The placeholder for an unreadable message."""
    return Envelope(performative="", payload={}, message_id="unknown")
