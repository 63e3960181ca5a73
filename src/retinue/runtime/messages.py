"""The receivers of messages of a process: an agent's, and the hub's for every agent of its directory.

Nothing of ``retinue.messages`` is loaded until the first message: most processes never get one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from starlette.routing import Route
from starlette.types import ASGIApp

from retinue.authoring.context import Context
from retinue.core.call import Answer, Call, Outcome, Principal, TraceContext
from retinue.core.errors import StateError, UnknownAgentError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.parts.lazy import Lazy, LazyApp
from retinue.parts.process import Process
from retinue.runtime.peers import Peers
from retinue.settings_tables import MessageTable
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.security import RequestIdentity

if TYPE_CHECKING:
    from logging.handlers import RotatingFileHandler

    from retinue.messages.client import MessageInvoker
    from retinue.messages.exchange import MessageOptions, OnMessage
    from retinue.messages.journal import TaskJournal
    from retinue.messages.receiver import Receiver

PROTOCOL = "messages"
"""The protocol of endpoints in cards, for `LocalFirst.add_protocol`."""

_KIND = "messages"
"""The kind of the files in which accepted tasks are stored."""

_log = structlog.get_logger(__name__)

LOG_BYTES = 10 * 1024 * 1024
LOG_FILES = 3


class Messages:
    """Messages to the agents of one process, whose receiver is made with the first; close it with `aclose`.

    It answers for every agent that the process shows.
    """

    def __init__(self, process: Process) -> None:
        self._calls = process.dispatcher
        self._shown = process.shown
        self._table = process.tables.get(MessageTable)
        self._allow_private = self._table.private_callbacks and process.http.allow_private
        self._state = process.state
        self._began_at = time.time()
        self._receiver = Lazy(self._receiving)
        self._observers: list[OnMessage] = []

    def observe(self, observer: OnMessage) -> None:
        """Call ``observer`` with each message that was understood, before it is answered."""
        self._observers.append(observer)

    async def receiver(self) -> Receiver:
        """The receiver."""
        return await self._receiver.open()

    async def recover(self) -> None:
        """Take up the tasks that the processes before this one have left."""
        try:
            if self._state.tasks_file(self._shown.agent.name, 1, _KIND).exists():
                (await self.receiver()).recover()
        except StateError as error:
            # the process answers calls all the same; it accepts no task that it cannot store
            _log.warning("accepted tasks cannot be read", reason=error.message, remedy=error.remedy)

    @property
    def routes(self) -> tuple[Route, ...]:
        """``POST /messages`` of the process's agent and, at a hub, of every agent.

        It answers with a trailing slash, too: a client that does not follow redirects gets no reply else.
        """

        async def make() -> ASGIApp:
            from retinue.messages.server import MessagesEndpoint

            return MessagesEndpoint(await self.receiver())

        app = LazyApp(make)
        paths = ("/messages", "/agents/{agent}/messages") if self._shown.has_others else ("/messages",)
        return tuple(Route(path + end, app, methods=["POST"]) for path in paths for end in ("", "/"))

    async def answer_envelope(
        self, envelope: dict[str, Any], identity: RequestIdentity, trace: TraceContext | None
    ) -> dict[str, Any]:
        """The reply to an envelope that another protocol carried."""
        return await (await self.receiver()).answer_envelope(envelope, identity, trace)

    async def answer_in(self, envelope: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """The reply to an envelope that a skill was called with; it is answered with its caller's rights."""

        async def run(
            skill: str, arguments: Mapping[str, Any], agent: str | None, channel: Channel, by: float | None
        ) -> Outcome:
            return await ctx.relay(skill, arguments, agent=agent, deadline=by)

        receiver = await self.receiver()
        answer = await receiver.answer_with(
            envelope, ctx.principal, run, in_background=False, trace=ctx.trace
        )
        return answer.message

    async def aclose(self) -> None:
        """End tasks, subscriptions and deliveries."""
        await self._receiver.aclose()

    @asynccontextmanager
    async def _receiving(self) -> AsyncIterator[Receiver]:
        from retinue.messages.callbacks import Callbacks
        from retinue.messages.receiver import Receiver
        from retinue.messages.replays import SignedOnce

        table, name = self._table, self._shown.agent.name
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(HttpClient(allow_private=self._allow_private))
            log = None if table.log is None else stack.enter_context(closing(MessageLog(table.log)))
            receiver = Receiver(
                name,
                self._calls,
                self._record_of,
                Callbacks(http, http.check_url),
                forwards=self._shown.has_others,
                watch=self._shown.subscribe,
                log=log,
                key=self._state.mesh_key(),
                journal=_journal(self._state, name),
                options=_options(table),
                on_message=self._tell_observers if self._observers else None,
                signed_once=SignedOnce(table.signature_age_s, since=self._began_at),
            )
            stack.push_async_callback(receiver.aclose)
            yield receiver

    async def _tell_observers(
        self, message: Mapping[str, Any], principal: Principal, trace: TraceContext | None
    ) -> None:
        for observer in self._observers:
            await observer(message, principal, trace)

    async def _record_of(self, name: str, caller: Principal) -> AgentRecord:
        """The record under the name by which the agent is called."""
        try:
            agent = await self._shown.find(name, caller, for_call=True)
        except UnknownAgentError:
            spelling = await self._shown.find_spelling(name, caller)
            if spelling is None:
                raise
            name, agent = spelling, await self._shown.find(spelling, caller, for_call=True)
        return replace(agent.record, name=name)


class LazyMessageInvoker:
    """Invokes agents that take messages; its client is loaded with the first call. Close it with `aclose`.

    ``messages`` receives replies that arrive on their own.
    """

    def __init__(self, peers: Peers, messages: Messages | None = None) -> None:
        self._peers = peers
        self._messages = messages
        self._invoker = Lazy(self._invoking)

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """As `MessageInvoker.invoke`."""
        return await (await self._invoker.open()).invoke(listing, skill, call, admitted, channel)

    async def aclose(self) -> None:
        """Let go of the client; no call follows."""
        await self._invoker.aclose()

    @asynccontextmanager
    async def _invoking(self) -> AsyncIterator[MessageInvoker]:
        from retinue.messages.client import MessageInvoker

        receiver = None if self._messages is None else await self._messages.receiver()
        yield MessageInvoker(
            self._peers.http,
            signer=self._peers.signer,
            token_for=self._peers.token_for,
            conversations=None if receiver is None else receiver.conversations,
        )


def _journal(state: State, name: str) -> TaskJournal:
    from retinue.messages.journal import TaskJournal
    from retinue.messages.tasks import KEEP, KEEP_S
    from retinue.storage.task_store import TaskStore

    return TaskJournal(
        lambda: TaskStore.open(state, name, keep=KEEP, keep_days=KEEP_S / 86_400.0, kind=_KIND)
    )


def _options(table: MessageTable) -> MessageOptions:
    from retinue.messages.exchange import MessageOptions

    return MessageOptions(
        strict=table.strict, signatures=table.signatures, sign=table.sign, wait_s=table.wait_s
    )


class MessageLog:
    """Appends lines to the message log, which is rotated at 10 MB and readable by its owner only."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._handler: RotatingFileHandler | None = None

    def __call__(self, line: str) -> None:
        # needed only where there is a log
        import logging
        from logging.handlers import RotatingFileHandler

        if self._handler is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            self._handler = RotatingFileHandler(
                self._file, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8"
            )
            self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._handler.emit(logging.LogRecord("retinue.messages", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()
