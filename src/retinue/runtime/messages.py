"""The receivers of messages of a process: an agent's, and the hub's for every agent of its directory.

Nothing of ``retinue.messages`` is loaded until the first message: most processes never get one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Answer, Call, Outcome, Principal, TraceContext
from retinue.core.errors import StateError, UnknownAgentError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import AdmittedCall, Signer
from retinue.mesh.permissions import AgentView, is_seen
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.security import RequestIdentity
from retinue.web.transport import HttpResponse

if TYPE_CHECKING:
    from logging.handlers import RotatingFileHandler

    from retinue.messages.client import MessageInvoker
    from retinue.messages.exchange import MessageOptions, RecordOf
    from retinue.messages.journal import Journal
    from retinue.messages.receiver import Receiver
    from retinue.messages.subscriptions import Watch

PROTOCOL = "messages"
"""Of endpoints in cards, for `LocalFirst.add_protocol`."""

_KIND = "messages"
"""Of the files in which accepted tasks are stored."""

_log = structlog.get_logger(__name__)

LOG_BYTES = 10 * 1024 * 1024
LOG_FILES = 3


class Messages:
    """The receiver of one process, made with its first message; close it with `aclose`."""

    def __init__(
        self,
        make: Callable[[CallbackClient, MessageLog | None], Receiver],
        settings: Settings,
        has_tasks: Callable[[], bool],
    ) -> None:
        table = settings.messages
        self._make = make
        self._has_tasks = has_tasks
        self._client = CallbackClient(table.private_callbacks and settings.allow_private_urls)
        self._log = None if table.log is None else MessageLog(table.log)
        self._receiver: Receiver | None = None

    @property
    def receiver(self) -> Receiver:
        """The receiver."""
        if self._receiver is None:
            self._receiver = self._make(self._client, self._log)
        return self._receiver

    def recover(self) -> None:
        """Take up the tasks that the processes before this one have left."""
        try:
            if self._has_tasks():
                self.receiver.recover()
        except StateError as error:
            # the process answers calls all the same; it accepts no task that it cannot store
            _log.warning("accepted tasks cannot be read", reason=error.message, remedy=error.remedy)

    def routes(self, path: str = "/messages") -> tuple[Route, ...]:
        """``POST /messages``, for the process's agent or the one that ``{agent}`` in the path names.

        It answers with a trailing slash, too: a client that does not follow redirects gets no reply else.
        """
        return tuple(Route(one, _Endpoint(self), methods=["POST"]) for one in (path, f"{path}/"))

    async def answer_envelope(
        self, envelope: dict[str, Any], identity: RequestIdentity, trace: TraceContext | None
    ) -> dict[str, Any]:
        """The reply to an envelope that another protocol carried."""
        return await self.receiver.answer_envelope(envelope, identity, trace)

    async def answer_in(self, envelope: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """The reply to an envelope that a skill was called with; it is answered with its caller's rights."""

        async def run(
            skill: str, arguments: Mapping[str, Any], agent: str | None, channel: Channel, by: float | None
        ) -> Outcome:
            return await ctx.relay(skill, arguments, agent=agent, deadline=by)

        answer = await self.receiver.answer_with(envelope, ctx.principal, run, in_background=False)
        return answer.message

    async def aclose(self) -> None:
        """End tasks, subscriptions and deliveries."""
        if self._receiver is not None:
            await self._receiver.aclose()
        await self._client.aclose()
        if self._log is not None:
            self._log.close()


class LazyMessageInvoker:
    """Invokes agents that take messages; its client is loaded with the first call."""

    def __init__(self, http: HttpClient, signer: Signer, token_for: Callable[[str, str], str | None]) -> None:
        self._http = http
        self._signer = signer
        self._token_for = token_for
        self._invoker: MessageInvoker | None = None
        self.messages: Messages | None = None
        """What receives replies that arrive on their own."""

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """As `MessageInvoker.invoke`."""
        return await self._load().invoke(listing, skill, call, admitted, channel)

    def _load(self) -> MessageInvoker:
        if self._invoker is None:
            from retinue.messages.client import MessageInvoker

            self._invoker = MessageInvoker(
                self._http,
                signer=self._signer,
                token_for=self._token_for,
                conversations=None if self.messages is None else self.messages.receiver.conversations,
            )
        return self._invoker


class _Endpoint:
    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # loaded with the first message
        from retinue.messages.server import MessagesEndpoint

        await MessagesEndpoint(self._messages.receiver)(scope, receive, send)


class CallbackClient:
    """An HTTP client of its own for callbacks, with its own rule for private addresses; opened when used."""

    def __init__(self, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._client: HttpClient | None = None

    async def _open(self) -> HttpClient:
        if self._client is None:
            self._client = await HttpClient(allow_private=self._allow_private).__aenter__()
        return self._client

    async def check_url(self, url: str) -> None:
        """As `HttpClient.check_url`."""
        await (await self._open()).check_url(url)

    async def request(self, method: str, url: str, **options: Any) -> HttpResponse:
        """As `HttpClient.request`."""
        return await (await self._open()).request(method, url, **options)

    async def aclose(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()


def agent_messages(agent: Agent, dispatcher: Dispatcher, settings: Settings, state: State) -> Messages:
    """The receiver of one agent's process."""

    async def record_of(name: str, caller: Principal) -> AgentRecord:
        if name != agent.name or not is_seen(dispatcher.access.view_of(caller), name):
            raise UnknownAgentError(name)
        return agent.record()

    def watch(name: str, changed: Callable[[], None]) -> Callable[[], None]:
        return agent.changes.subscribe(lambda change: changed())

    return _messages(agent.name, dispatcher, record_of, watch, settings, state, forwards=False)


def hub_messages(
    own: Agent, directory: Directory, dispatcher: Dispatcher, settings: Settings, state: State
) -> Messages:
    """The receiver of a hub: for itself, and for every agent of its directory."""

    async def record_of(name: str, caller: Principal) -> AgentRecord:
        view = dispatcher.access.view_of(caller)
        if name == own.name and is_seen(view, name):
            return own.record()
        await directory.ensure_fresh(for_call=True)
        try:
            listing = await directory.open_named(name, view=view)
            return replace(listing.record, name=name)
        except UnknownAgentError:
            spelt = _find_folded(directory, name, view)
            if spelt is None:
                # no suggestions: similar names may be hidden from the caller
                raise UnknownAgentError(name) from None
        listing = await directory.open_named(spelt, view=view)
        return replace(listing.record, name=spelt)

    def watch(name: str, changed: Callable[[], None]) -> Callable[[], None]:
        def note(change: ListingChange) -> None:
            if not change.measured and directory.name_of(change.entry) == name:
                changed()

        return own.changes.subscribe(lambda _: changed()) if name == own.name else directory.subscribe(note)

    return _messages(own.name, dispatcher, record_of, watch, settings, state, forwards=True)


def _messages(
    name: str,
    dispatcher: Dispatcher,
    record_of: RecordOf,
    watch: Watch,
    settings: Settings,
    state: State,
    *,
    forwards: bool,
) -> Messages:
    # the receiver itself is made later, with the first message
    began_at = time.time()

    def make(client: CallbackClient, log: MessageLog | None) -> Receiver:
        from retinue.messages.callbacks import Callbacks
        from retinue.messages.receiver import Receiver
        from retinue.messages.replays import SignedOnce

        return Receiver(
            name,
            dispatcher,
            record_of,
            Callbacks(client, client.check_url),
            forwards=forwards,
            watch=watch,
            log=log,
            key=state.mesh_key(),
            journal=_journal(state, name),
            options=_options(settings),
            signed_once=SignedOnce(settings.messages.signature_age_s, since=began_at),
        )

    return Messages(make, settings, lambda: _has_tasks(state, name))


def _journal(state: State, name: str) -> Journal:
    from retinue.messages.journal import Journal
    from retinue.messages.tasks import KEEP, KEEP_S
    from retinue.storage.task_store import TaskStore

    return Journal(lambda: TaskStore.open(state, name, keep=KEEP, keep_days=KEEP_S / 86_400.0, kind=_KIND))


def _has_tasks(state: State, name: str) -> bool:
    return state.tasks_file(name, 1, _KIND).exists()


def _find_folded(directory: Directory, name: str, view: AgentView | None) -> str | None:
    """The only visible agent whose name differs in case, ``_`` or ``-`` alone."""
    from retinue.mesh.asking.query import fold

    wanted = fold(name)
    found = {
        shown
        for entry in directory.list_entries()
        if fold(shown := directory.name_of(entry)) == wanted and is_seen(view, entry.name)
    }
    return found.pop() if len(found) == 1 else None


def _options(settings: Settings) -> MessageOptions:
    from retinue.messages.exchange import MessageOptions

    table = settings.messages
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
