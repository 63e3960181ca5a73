"""The readable part of an agent: resources, prompts and completions."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

from retinue.authoring.context import Context
from retinue.authoring.judgement import Judgement
from retinue.authoring.readables import Readables
from retinue.authoring.signatures import describe_object
from retinue.core.call import Answer, Call
from retinue.core.errors import InvalidSettingError, UnknownResourceError
from retinue.core.record import AgentRecord, Resource, Visibility
from retinue.core.text import suggest
from retinue.mesh.asking.query import answer_query, parse_query
from retinue.mesh.channel import Channel
from retinue.mesh.reading import Change, ChangeKind, Changes, Read, ReadRequest

F = TypeVar("F", bound=Callable[..., Any])


P = ParamSpec("P")
R = TypeVar("R")


def names_nearest_option(function: Callable[P, R]) -> Callable[P, R]:
    """Make an unknown keyword argument a TypeError that names the nearest known one.

    One whose value is of another type than annotated is a TypeError that names the type.
    """
    known = {
        name: str(parameter.annotation)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.POSITIONAL_ONLY and name != "self"
    }
    # as authors know it, also where a base of their class defines it
    what = function.__qualname__.removesuffix(".__init__").replace("Offering.", "Agent.")

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        for name, value in options.items():
            if name not in known:
                near = suggest(name, [*known], limit=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise TypeError(f"{what} has no option {name!r} — {hint}")
            if shapes := _find_misfit(known[name], value):
                hint = f"write {name}=[{value!r}]" if isinstance(value, str) and "list" in shapes else ""
                shape = f"{type(value).__name__} {str(value)[:40]!r}"
                raise TypeError(f"{what}: {name} must be {shapes}, not {shape}{hint and f' — {hint}'}")
        return function(*args, **options)

    return checked


_OPTION_TYPES: dict[str, tuple[Any, str]] = {
    "Iterable": (Iterable, "a list"),
    "str": (str, "a text"),
    "bool": (bool, "True or False"),
    "float": ((int, float), "a number"),
}


def _find_misfit(annotation: str, value: Any) -> str:
    """The values that an option of this annotation takes, if ``value`` is none of them; "" otherwise."""
    kinds = [kind.partition("[")[0] for kind in re.sub(r"\[.*\]", "", annotation).split(" | ")]
    if (value is None and "None" in kinds) or any(kind not in (*_OPTION_TYPES, "None") for kind in kinds):
        return ""
    types = [_OPTION_TYPES[kind] for kind in kinds if kind != "None"]
    for kind, _ in types:
        # a str is an Iterable too, but never a valid list of texts
        if isinstance(value, kind) and not (kind is Iterable and isinstance(value, str)):
            return ""
    return " or ".join(shape for _, shape in types)


def decorate_with(add: Callable[[F], F], decorated: Any, what: str) -> Any:
    """The result of ``@agent.skill`` and its like: of the bare form the function, else the decorator.

    ``decorated`` is the positional argument: the function, an id, or None. Raises InvalidSettingError.
    """
    if decorated is None or isinstance(decorated, str):
        return add
    if callable(decorated):
        return add(decorated)
    raise InvalidSettingError(
        f"@agent.{what}",
        f"{type(decorated).__name__} is neither a function nor an id",
        remedy=f"put @agent.{what} on a function, or give its id as a text",
    )


class Offering(ABC):
    """The base of ``Agent``: its resources, prompts and completions, and what running it in a process takes.

    ``changes`` notifies observers of lists that changed.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self.revision = 0
        """Changes whenever the record changes."""
        self._readables = Readables()
        self._judgement: Judgement | None = None

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

    def can(self, function: F) -> F:
        """Make a function the agent's own judgement of its present capabilities; as ``@agent.can``.

        The function takes a capability, a skill id or an action's name as the caller writes it, and
        optionally the context. It returns True or False, None for what the record says, or `Can` with price,
        time and confidence. If it raises, the record answers, and the answer has ``"live": false``. Raises
        InvalidSettingError.
        """
        self._judgement = Judgement(function)
        return function

    async def answer_query(self, call: Call, context: Context) -> Answer:
        """Answer the reserved skill ``query_capabilities``; raises InvalidParametersError."""
        query = parse_query(call.arguments)
        record, scopes = self.record(), call.principal.scopes
        if self._judgement is None or not query.wanted:
            return Answer(answer_query(record, query, scopes))
        judgement = await self._judgement.ask(query.wanted, context, self.name)
        return Answer(answer_query(record, query, scopes, judgement or {}, is_live=judgement is not None))

    @names_nearest_option
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
                    name=name or name_of(function, "resource"),
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
        resource = self._readables.find_resource(uri)
        if resource is None:
            raise UnknownResourceError(uri)
        if not resource.live:
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

    @names_nearest_option
    def prompt(
        self,
        name: Any = None,
        /,
        *,
        title: str | None = None,
        description: str | None = None,
        expose: bool = False,
        private: bool = False,
    ) -> Any:
        """Make a function a prompt; its parameters are the prompt's arguments.

        ``name`` defaults to the function's name, ``description`` to its docstring. ``expose`` shows the
        prompt to MCP clients, ``private`` to this process only. The function returns a text, a part, a
        message, or a list of these. Raises InvalidSettingError, and TypeError for an unknown option.
        """

        def add(function: F) -> F:
            self._readables.add_prompt(
                function,
                name_of(function, "prompt") if name is None or name is function else name,
                visibility=visibility_of(expose, private),
                title=title,
                description=describe(function, description),
            )
            self._notify("prompts")
            return function

        return decorate_with(add, name, "prompt")

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
        """Answer a read of the principal; raises UnknownResourceError or UnknownPromptError."""
        return await self._readables.read(request, self.record(with_facts=True), context)

    def _notify(self, kind: ChangeKind) -> None:
        self.revision += 1
        self.changes.notify(Change(kind))


def name_of(function: Callable[..., Any], what: str) -> str:
    """The offered name of a function; raises InvalidSettingError for a function without a name."""
    name = getattr(function, "__name__", "")
    if not name or name == "<lambda>":
        raise InvalidSettingError(
            f"@agent.{what}",
            "a lambda has no name" if name else f"{describe_object(function)} has no name",
            remedy=f"put @agent.{what} on a function written with def",
        )
    return str(name)


def visibility_of(expose: bool, private: bool) -> Visibility:
    """The visibility that the two flags of a decorator mean."""
    return "private" if private else "exposed" if expose else "mesh"


def describe(function: Callable[..., Any], description: str | None) -> str:
    """The given description, otherwise the function's docstring."""
    return inspect.getdoc(function) or "" if description is None else description
