"""The part of an agent that is read rather than called: resources, prompts and completions."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, overload

from retinue.authoring.context import Context
from retinue.authoring.readables import Readables
from retinue.core.call import Answer, Call
from retinue.core.errors import InvalidSettingError, UnknownResourceError
from retinue.core.record import AgentRecord, Resource, Visibility
from retinue.mesh.channel import Channel
from retinue.mesh.reading import Change, ChangeKind, Changes, Read, ReadRequest

F = TypeVar("F", bound=Callable[..., Any])


class Offering(ABC):
    """The base of ``Agent``: its resources, prompts and completions, and what running it in a process takes.

    ``changes`` notifies observers of lists that changed.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self.revision = 0
        """Changes whenever the record changes."""
        self._readables = Readables()

    @property
    @abstractmethod
    def name(self) -> str:
        """The agent's name."""

    @abstractmethod
    async def run(self, call: Call, context: Context, channel: Channel) -> Answer:
        """Run one admitted call of a skill."""

    @abstractmethod
    def record(self, url: str | None = None, *, with_facts: bool = False) -> AgentRecord:
        """The agent record; see `Agent.record`."""

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime: str = "text/plain",
        expose: bool = False,
        private: bool = False,
        live: bool = False,
    ) -> Callable[[F], F]:
        """Make a function the reader of a resource; variables ``{name}`` of ``uri`` are its parameters.

        The function returns text, bytes, parts, or a JSON value. With ``live``, readers can subscribe and are
        notified by ``resource_changed``. Raises InvalidSettingError.
        """

        def decorate(function: F) -> F:
            self._readables.add_resource(
                function,
                Resource(
                    uri=uri,
                    name=name or function.__name__,
                    mime=mime,
                    visibility=visibility_of(expose, private),
                    title=title,
                    description=describe(function, description),
                    live=live,
                ),
            )
            self._notify("resources")
            return function

        return decorate

    def resource_changed(self, uri: str) -> None:
        """Notify subscribers that the content of this resource changed; may be called in any thread."""
        found = self._readables.find_resource(uri)
        if found is None:
            raise UnknownResourceError(uri)
        if not found.live:
            raise InvalidSettingError(
                f"resource {uri}", "it has no subscriptions", remedy="declare it with live=True"
            )
        self.changes.notify(Change("resource", uri))

    @overload
    def prompt(self, name: F, /) -> F: ...

    @overload
    def prompt(
        self,
        name: str | None = None,
        /,
        *,
        title: str | None = None,
        description: str | None = None,
        expose: bool = False,
        private: bool = False,
    ) -> Callable[[F], F]: ...

    def prompt(self, name: Any = None, /, **options: Any) -> Any:
        """Make a function a prompt; its parameters are the prompt's arguments.

        The function returns a text, a part, a message, or a list of these. Raises InvalidSettingError.
        """
        if callable(name):
            return self._add_prompt(name, name.__name__)

        def decorate(function: F) -> F:
            return self._add_prompt(function, name or function.__name__, **options)

        return decorate

    def _add_prompt(
        self,
        function: F,
        name: str,
        *,
        title: str | None = None,
        description: str | None = None,
        expose: bool = False,
        private: bool = False,
    ) -> F:
        self._readables.add_prompt(
            function,
            name,
            visibility=visibility_of(expose, private),
            title=title,
            description=describe(function, description),
        )
        self._notify("prompts")
        return function

    def forget_prompt(self, name: str) -> None:
        """Remove a prompt; raises UnknownPromptError."""
        self._readables.forget_prompt(name)
        self._notify("prompts")

    def completes(self, owner: str, argument: str) -> Callable[[F], F]:
        """Make a function the completer for an argument of a prompt (by name) or template (by URI).

        The function takes ``value``, the text typed so far, and any of the other arguments.
        """

        def decorate(function: F) -> F:
            self._readables.add_completer(function, owner, argument)
            return function

        return decorate

    async def read(self, request: ReadRequest, context: Context) -> Read:
        """Read what the principal may see; raises UnknownResourceError or UnknownPromptError."""
        return await self._readables.read(request, self.record(with_facts=True), context)

    def _notify(self, kind: ChangeKind) -> None:
        self.revision += 1
        self.changes.notify(Change(kind))


def visibility_of(expose: bool, private: bool) -> Visibility:
    """The visibility that the two flags of a decorator mean."""
    return "private" if private else "exposed" if expose else "mesh"


def describe(function: Callable[..., Any], given: str | None) -> str:
    """The given description, otherwise the function's docstring."""
    return inspect.getdoc(function) or "" if given is None else given
