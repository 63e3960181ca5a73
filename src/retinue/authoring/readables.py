"""What an agent lets itself be asked to read: resources, prompts, and values for their arguments."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.authoring.answers import as_parts, has_parts
from retinue.authoring.context import Context
from retinue.authoring.encoding import encode_result
from retinue.authoring.facts import read_fact
from retinue.authoring.signatures import Signature, read_signature
from retinue.core.call import Part
from retinue.core.errors import (
    InvalidSettingError,
    OutputInvalidError,
    Problem,
    UnknownPromptError,
    UnknownResourceError,
)
from retinue.core.record import AgentRecord, Prompt, PromptArgument, Resource
from retinue.mesh.reading import Completion, Message, PromptText, Read, ReadRequest
from retinue.mesh.visibility import is_visible
from retinue.protocols.mcp.uris import UriTemplate, UriTemplateError, is_template, parse_template

Function = Callable[..., Any]

MAX_CHOICES = 1000
"""Values of an enumeration that are offered as completions."""


@dataclass(frozen=True, slots=True)
class _Readable:
    function: Function
    signature: Signature
    template: UriTemplate | None = None


class Readables:
    """The resources and prompts of one agent, with the functions behind them."""

    def __init__(self) -> None:
        self._resources: dict[str, tuple[Resource, _Readable]] = {}
        self._prompts: dict[str, tuple[Prompt, _Readable]] = {}
        self._completers: dict[tuple[str, str], _Readable] = {}

    @property
    def resources(self) -> tuple[Resource, ...]:
        return tuple(resource for resource, _ in self._resources.values())

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return tuple(prompt for prompt, _ in self._prompts.values())

    def add_resource(self, function: Function, resource: Resource) -> None:
        """Add a resource or template; raises InvalidSettingError for what cannot be read."""
        where = f"resource {resource.uri}"
        _refuse_twice(where, resource.uri in self._resources)
        signature = read_signature(function, where, reads_result=False)
        template = None
        if is_template(resource.uri):
            try:
                template = parse_template(resource.uri)
            except UriTemplateError as error:
                raise InvalidSettingError(where, str(error), remedy="mend the template") from error
        elif ":" not in resource.uri:
            raise InvalidSettingError(where, "it is no uri", remedy="write a scheme, such as notes://today")
        _check_parameters(where, signature, template.names if template else ())
        self._resources[resource.uri] = (resource, _Readable(function, signature, template))

    def add_prompt(self, function: Function, name: str, **facts: Any) -> None:
        """Add a prompt; its arguments are the function's parameters."""
        where = f"prompt {name}"
        _refuse_twice(where, name in self._prompts)
        signature = read_signature(function, where, reads_result=False)
        required = signature.input_schema.get("required", ())
        properties: Mapping[str, Any] = signature.input_schema.get("properties", {})
        arguments = tuple(
            PromptArgument(name=one, description=schema.get("description", ""), required=one in required)
            for one, schema in properties.items()
        )
        self._prompts[name] = (Prompt(name, arguments, **facts), _Readable(function, signature))

    def forget_prompt(self, name: str) -> None:
        """Take a prompt away, with what completes its arguments; raises UnknownPromptError."""
        if self._prompts.pop(name, None) is None:
            raise UnknownPromptError(name)
        self._completers = {key: one for key, one in self._completers.items() if key[0] != name}

    def add_completer(self, function: Function, owner: str, argument: str) -> None:
        """Add what gives values for one argument of a prompt (its name) or template (its uri)."""
        where = f"completion of {argument} of {owner}"
        _, readable = self._prompts.get(owner) or self._resources.get(owner) or (None, None)
        known = readable.signature.input_schema.get("properties", {}) if readable else {}
        if argument not in known:
            raise InvalidSettingError(
                where, "there is no such argument", remedy="define the prompt or template above it"
            )
        _refuse_twice(where, (owner, argument) in self._completers)
        signature = read_signature(function, where, reads_result=False)
        self._completers[owner, argument] = _Readable(function, signature)

    def find_resource(self, uri: str) -> Resource | None:
        """The resource of this uri, or the first template that it fits."""
        found = self._find_resource(uri)
        return None if found is None else found[0]

    async def read(self, request: ReadRequest, record: AgentRecord, context: Context) -> Read:
        """Read what ``record`` shows to this principal; what is hidden is refused as what is missing.

        Raises UnknownResourceError, UnknownPromptError, InvalidParametersError.
        """
        scopes = request.principal.scopes
        if request.kind == "resource":
            return await self._read_resource(request.name, record, scopes, context)
        if request.kind == "prompt":
            return await self._get_prompt(request, record, scopes, context)
        return await self._complete(request, record, scopes, context)

    async def _read_resource(
        self, uri: str, record: AgentRecord, scopes: frozenset[str], context: Context
    ) -> tuple[Part, ...]:
        found = self._find_resource(uri)
        shown = {one.uri for one in record.resources if is_visible(one, scopes)}
        if found is None:
            fact = read_fact(record, uri, scopes) if uri in shown else None
            if fact is None:
                raise UnknownResourceError(uri)
            return fact
        resource, readable, values = found
        if resource.uri not in shown:
            raise UnknownResourceError(uri)
        return _as_contents(uri, resource.mime, await _run(readable, values, context))

    async def _get_prompt(
        self, request: ReadRequest, record: AgentRecord, scopes: frozenset[str], context: Context
    ) -> PromptText:
        found = self._prompts.get(request.name)
        if found is None or request.name not in _list_shown(record, scopes):
            raise UnknownPromptError(request.name)
        prompt, readable = found
        said = await _run(readable, request.arguments, context)
        return PromptText(_as_messages(request.name, said), prompt.description)

    async def _complete(
        self, request: ReadRequest, record: AgentRecord, scopes: frozenset[str], context: Context
    ) -> Completion:
        """Values for one argument: from its completer, else from the enumeration that it declares."""
        _, readable = self._prompts.get(request.name) or self._resources.get(request.name) or (None, None)
        if readable is None or request.name not in _list_shown(record, scopes):
            is_uri = "/" in request.name or ":" in request.name
            raise UnknownResourceError(request.name) if is_uri else UnknownPromptError(request.name)
        completer = self._completers.get((request.name, request.argument))
        if completer is None:
            typed = request.value.casefold()
            choices = _list_choices(readable.signature, request.argument)
            return Completion(tuple(one for one in choices if one.casefold().startswith(typed)))
        given = {**request.arguments, "value": request.value}
        values = await _run(completer, given, context)
        return Completion(tuple(str(one) for one in values))

    def _find_resource(self, uri: str) -> tuple[Resource, _Readable, dict[str, str]] | None:
        exact = self._resources.get(uri)
        if exact is not None and exact[1].template is None:
            return (*exact, {})
        for resource, readable in self._resources.values():
            if readable.template is not None and (values := readable.template.match(uri)) is not None:
                return resource, readable, values
        return None


def _list_shown(record: AgentRecord, scopes: frozenset[str]) -> set[str]:
    """Names of prompts and uris of resources that are visible."""
    prompts = {one.name for one in record.prompts if is_visible(one, scopes)}
    return prompts | {one.uri for one in record.resources if is_visible(one, scopes)}


async def _run(readable: _Readable, arguments: Mapping[str, Any], context: Context) -> Any:
    bound = readable.signature.bind(arguments, context)
    if readable.signature.is_async:
        return await readable.function(**bound)
    value = await asyncio.to_thread(readable.function, **bound)
    return await value if inspect.isawaitable(value) else value


def _as_contents(uri: str, mime: str, value: Any) -> tuple[Part, ...]:
    """Text and bytes as they are, parts as they are, anything else as JSON."""
    if has_parts(value):
        return as_parts(value)
    if isinstance(value, str | bytes):
        return (Part.resource(uri, value, mime),)
    return (Part.resource(uri, orjson.dumps(encode_result(uri, value)).decode(), mime),)


def _as_messages(name: str, value: Any) -> tuple[Message, ...]:
    """A text, a part, a message or a list of these; what is no message is the user's."""
    several: Iterable[Any] = value if isinstance(value, list | tuple) else (value,)
    messages = []
    for one in several:
        if isinstance(one, Message):
            messages.append(one)
        elif isinstance(one, str | Part):
            messages.append(Message("user", one if isinstance(one, Part) else Part.text(one)))
        else:
            problem = f"no message: {type(one).__name__}; return texts, parts or messages"
            raise OutputInvalidError(f"prompt {name}", [Problem("", problem)])
    return tuple(messages)


def _list_choices(signature: Signature, argument: str) -> tuple[str, ...]:
    """The values that a parameter of a Literal or Enum type may have."""
    schema = signature.input_schema
    wanted: Any = schema.get("properties", {}).get(argument, {})
    if "$ref" in wanted:
        wanted = schema.get("$defs", {}).get(wanted["$ref"].rpartition("/")[2], {})
    choices = wanted.get("enum", [wanted["const"]] if "const" in wanted else [])
    return tuple(str(one) for one in choices[:MAX_CHOICES])


def _check_parameters(where: str, signature: Signature, names: tuple[str, ...]) -> None:
    """A template's variables are the function's parameters, all of them and no other required one."""
    known = signature.input_schema.get("properties", {})
    missing = [name for name in names if name not in known]
    spare = [name for name in signature.input_schema.get("required", ()) if name not in names]
    if missing or spare:
        problem = f"no parameter for {', '.join(missing)}" if missing else f"nothing gives {', '.join(spare)}"
        raise InvalidSettingError(where, problem, remedy="name the parameters as the uri's variables")


def _refuse_twice(where: str, known: bool) -> None:
    if known:
        raise InvalidSettingError(where, "there is one already", remedy="give one of them another name")
