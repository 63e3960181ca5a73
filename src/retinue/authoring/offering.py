"""The side of an agent that is read rather than called: resources, prompts, and completion."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, overload

from retinue.authoring.context import Context
from retinue.authoring.readables import Readables
from retinue.core.errors import InvalidSettingError, UnknownResourceError
from retinue.core.record import AgentRecord, Resource, Visibility
from retinue.mesh.changes import Change, ChangeKind, Changes
from retinue.mesh.reading import Read, ReadRequest

F = TypeVar("F", bound=Callable[..., Any])


class Offering(ABC):
    """What ``Agent`` adds its skills to; ``changes`` tells whoever keeps lists of it."""

    def __init__(self) -> None:
        self.changes = Changes()
        self.revision = 0
        """Another number whenever the record is another one."""
        self._readables = Readables()

    @abstractmethod
    def record(self, url: str | None = None, *, with_facts: bool = False) -> AgentRecord:
        """The agent record; `Agent` has it."""

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
        """Make a function what is read under ``uri``; variables ``{name}`` of it are its parameters.

        It returns text, bytes, parts, or a value that is then JSON. ``live`` = readers may subscribe, and
        are told by ``resource_changed``. Raises InvalidSettingError.
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
            self._tell("resources")
            return function

        return decorate

    def resource_changed(self, uri: str) -> None:
        """Tell those who subscribed that this resource reads otherwise now; may be called in any thread."""
        found = self._readables.find_resource(uri)
        if found is None:
            raise UnknownResourceError(uri)
        if not found.live:
            raise InvalidSettingError(
                f"resource {uri}", "nobody can subscribe to it", remedy="declare it with live=True"
            )
        self.changes.tell(Change("resource", uri))

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

        It returns a text, a part, a message, or a list of these. Raises InvalidSettingError.
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
        self._tell("prompts")
        return function

    def forget_prompt(self, name: str) -> None:
        """Take a prompt away again; raises UnknownPromptError."""
        self._readables.forget_prompt(name)
        self._tell("prompts")

    def completes(self, owner: str, argument: str) -> Callable[[F], F]:
        """Make a function the one that gives values for an argument of a prompt (its name) or template
        (its uri): it takes ``value``, what was typed, and what it needs of the other arguments."""

        def decorate(function: F) -> F:
            self._readables.add_completer(function, owner, argument)
            return function

        return decorate

    async def read(self, request: ReadRequest, context: Context) -> Read:
        """Read what this principal may see; raises UnknownResourceError or UnknownPromptError."""
        return await self._readables.read(request, self.record(with_facts=True), context)

    def _tell(self, kind: ChangeKind) -> None:
        self.revision += 1
        self.changes.tell(Change(kind))


def visibility_of(expose: bool, private: bool) -> Visibility:
    """What the two flags of a decorator come to."""
    return "private" if private else "exposed" if expose else "mesh"


def describe(function: Callable[..., Any], given: str | None) -> str:
    """The given description, else the function's docstring."""
    return inspect.getdoc(function) or "" if given is None else given
