"""Declares resources, prompts and the completions of their arguments.

An agent's profile and its plain traits are resources as well.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from retinue.authoring.context import Context
from retinue.authoring.results import as_parts, encode_result, has_parts
from retinue.authoring.signatures import Signature, read_signature
from retinue.cards.pallet_card import render_card
from retinue.core.call import Part
from retinue.core.errors import (
    InvalidSettingError,
    OutputInvalidError,
    Problem,
    UnknownPromptError,
    UnknownResourceError,
)
from retinue.core.record import AgentRecord, Prompt, PromptArgument, Resource, is_visible
from retinue.core.uri_template import UriTemplate, UriTemplateError, is_template, parse_template
from retinue.mesh.reading import Completion, PromptMessage, PromptText, Read, ReadRequest

PROFILE = "profile"
"""Name of the resource with the agent's whole card; its URI is ``agent:<name>``."""


MAX_CHOICES = 1000
"""Maximum number of completions from an enumeration."""

Function = Callable[..., Any]

_JSON = "application/json"


def list_facts(record: AgentRecord) -> tuple[Resource, ...]:
    """The standard resources of an agent; visible to the mesh unless its lists expose them."""
    profile = Resource(
        profile_uri(record), PROFILE, _JSON, "mesh", description=f"What {record.name} is and can do"
    )
    traits = (
        Resource(
            _trait_uri(record, trait.name),
            f"trait:{trait.name}",
            _JSON,
            "mesh",
            description=trait.description,
        )
        for trait in record.traits
        if trait.skill_id is None
    )
    return (profile, *traits)


def read_fact(record: AgentRecord, uri: str, scopes: frozenset[str]) -> tuple[Part, ...] | None:
    """The content of a standard resource for a reader with these scopes; None for any other URI."""
    if uri == profile_uri(record):
        return (_as_json(uri, render_card(record, scopes=scopes)),)
    for trait in record.traits:
        if trait.skill_id is None and uri == _trait_uri(record, trait.name):
            facts = {"name": trait.name, "description": trait.description, "type": trait.type}
            return (_as_json(uri, {**facts, "value": trait.value}),)
    return None


def profile_uri(record: AgentRecord) -> str:
    """The URI of an agent's profile."""
    return f"agent:{quote(record.name)}"


def _trait_uri(record: AgentRecord, trait: str) -> str:
    return f"{profile_uri(record)}/traits/{quote(trait, safe='')}"


def _as_json(uri: str, value: object) -> Part:
    return Part.resource(uri, orjson.dumps(value).decode(), _JSON)


@dataclass(frozen=True, slots=True)
class _Readable:
    function: Function
    signature: Signature
    template: UriTemplate | None = None


class Readables:
    """The resources, prompts and completers of one agent, with their functions."""

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
        """Add a resource or template; raises InvalidSettingError."""
        where = f"resource {resource.uri}"
        _check_new(where, resource.uri in self._resources)
        signature = read_signature(function, where, reads_result=False)
        template = None
        if is_template(resource.uri):
            try:
                template = parse_template(resource.uri)
            except UriTemplateError as error:
                raise InvalidSettingError(where, str(error), remedy="fix the template") from error
        elif ":" not in resource.uri:
            raise InvalidSettingError(where, "not a URI", remedy="start with a scheme, such as notes://today")
        _check_parameters(where, signature, template.names if template else ())
        self._resources[resource.uri] = (resource, _Readable(function, signature, template))

    def add_prompt(self, function: Function, name: str, **facts: Any) -> None:
        """Add a prompt; its arguments are the function's parameters."""
        where = f"prompt {name}"
        _check_new(where, name in self._prompts)
        signature = read_signature(function, where, reads_result=False)
        required = signature.input_schema.get("required", ())
        properties: Mapping[str, Any] = signature.input_schema.get("properties", {})
        arguments = tuple(
            PromptArgument(
                name=argument, description=schema.get("description", ""), required=argument in required
            )
            for argument, schema in properties.items()
        )
        self._prompts[name] = (Prompt(name, arguments, **facts), _Readable(function, signature))

    def forget_prompt(self, name: str) -> None:
        """Remove a prompt and its completers; raises UnknownPromptError."""
        if self._prompts.pop(name, None) is None:
            raise UnknownPromptError(name)
        self._completers = {key: completer for key, completer in self._completers.items() if key[0] != name}

    def add_completer(self, function: Function, owner: str, argument: str) -> None:
        """Add a completer for one argument of a prompt (by name) or template (by URI)."""
        where = f"completion of {argument} of {owner}"
        _, readable = self._prompts.get(owner) or self._resources.get(owner) or (None, None)
        known = readable.signature.input_schema.get("properties", {}) if readable else {}
        if argument not in known:
            raise InvalidSettingError(
                where, "there is no such argument", remedy="define the prompt or template above it"
            )
        _check_new(where, (owner, argument) in self._completers)
        signature = read_signature(function, where, reads_result=False)
        self._completers[owner, argument] = _Readable(function, signature)

    def find_resource(self, uri: str) -> Resource | None:
        """The resource with this URI, or the first template that matches it."""
        match = self._find_resource(uri)
        return None if match is None else match[0]

    async def read(self, request: ReadRequest, record: AgentRecord, context: Context) -> Read:
        """Read what ``record`` shows to the principal; hidden items do not exist for it.

        Raises UnknownResourceError, UnknownPromptError or InvalidParametersError.
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
        match = self._find_resource(uri)
        shown = _list_uris(record, scopes)
        if match is None:
            fact = read_fact(record, uri, scopes) if uri in shown else None
            if fact is None:
                raise UnknownResourceError(uri)
            return fact
        resource, readable, values = match
        if resource.uri not in shown:
            raise UnknownResourceError(uri)
        return _as_contents(uri, resource.mime, await _run(readable, values, context))

    async def _get_prompt(
        self, request: ReadRequest, record: AgentRecord, scopes: frozenset[str], context: Context
    ) -> PromptText:
        declared = self._prompts.get(request.name)
        if declared is None or request.name not in _list_prompts(record, scopes):
            raise UnknownPromptError(request.name)
        prompt, readable = declared
        value = await _run(readable, request.arguments, context)
        return PromptText(_as_messages(request.name, value), prompt.description)

    async def _complete(
        self, request: ReadRequest, record: AgentRecord, scopes: frozenset[str], context: Context
    ) -> Completion:
        """Values for one argument: from its completer, otherwise from its declared enumeration."""
        prompt, resource = self._prompts.get(request.name), self._resources.get(request.name)
        # what policies have decided about, and nothing else of this name
        _, readable = (prompt if request.is_of_prompt else resource) or (None, None)
        shown = _list_prompts(record, scopes) if request.is_of_prompt else _list_uris(record, scopes)
        if readable is None or request.name not in shown:
            raise (UnknownPromptError if request.is_of_prompt else UnknownResourceError)(request.name)
        completer = self._completers.get((request.name, request.argument))
        if completer is None:
            typed = request.value.casefold()
            choices = _list_choices(readable.signature, request.argument)
            return Completion(tuple(choice for choice in choices if choice.casefold().startswith(typed)))
        arguments = {**request.arguments, "value": request.value}
        values = await _run(completer, arguments, context)
        return Completion(tuple(str(completion) for completion in values))

    def _find_resource(self, uri: str) -> tuple[Resource, _Readable, dict[str, str]] | None:
        exact = self._resources.get(uri)
        if exact is not None and exact[1].template is None:
            return (*exact, {})
        for resource, readable in self._resources.values():
            if readable.template is not None and (values := readable.template.match(uri)) is not None:
                return resource, readable, values
        return None


def _list_prompts(record: AgentRecord, scopes: frozenset[str]) -> set[str]:
    """The names of visible prompts."""
    return {prompt.name for prompt in record.prompts if is_visible(prompt.visibility, scopes)}


def _list_uris(record: AgentRecord, scopes: frozenset[str]) -> set[str]:
    """The URIs of visible resources and templates."""
    return {resource.uri for resource in record.resources if is_visible(resource.visibility, scopes)}


async def _run(readable: _Readable, arguments: Mapping[str, Any], context: Context) -> Any:
    bound = readable.signature.bind(arguments, context)
    if readable.signature.is_async:
        return await readable.function(**bound)
    value = await asyncio.to_thread(readable.function, **bound)
    return await value if inspect.isawaitable(value) else value


def _as_contents(uri: str, mime: str, value: Any) -> tuple[Part, ...]:
    """Text, bytes and parts unchanged, anything else as JSON."""
    if has_parts(value):
        return as_parts(value)
    if isinstance(value, str | bytes):
        return (Part.resource(uri, value, mime),)
    return (Part.resource(uri, orjson.dumps(encode_result(uri, value)).decode(), mime),)


def _as_messages(name: str, value: Any) -> tuple[PromptMessage, ...]:
    """A text, a part, a message or a list of these; texts and parts become messages of the user."""
    several: Iterable[Any] = value if isinstance(value, list | tuple) else (value,)
    messages = []
    for item in several:
        if isinstance(item, PromptMessage):
            messages.append(item)
        elif isinstance(item, str | Part):
            messages.append(PromptMessage("user", item if isinstance(item, Part) else Part.text(item)))
        else:
            problem = f"not a message: {type(item).__name__}; return texts, parts or messages"
            raise OutputInvalidError(f"prompt {name}", [Problem("", problem)])
    return tuple(messages)


def _list_choices(signature: Signature, argument: str) -> tuple[str, ...]:
    """The values of a parameter of a Literal or Enum type."""
    schema = signature.input_schema
    form: Any = schema.get("properties", {}).get(argument, {})
    if "$ref" in form:
        form = schema.get("$defs", {}).get(form["$ref"].rpartition("/")[2], {})
    choices = form.get("enum", [form["const"]] if "const" in form else [])
    return tuple(str(choice) for choice in choices[:MAX_CHOICES])


def _check_parameters(where: str, signature: Signature, names: tuple[str, ...]) -> None:
    """Check that the template's variables are parameters, and include all required ones."""
    known = signature.input_schema.get("properties", {})
    missing = [name for name in names if name not in known]
    spare = [name for name in signature.input_schema.get("required", ()) if name not in names]
    if missing or spare:
        problem = f"no parameter for {', '.join(missing)}" if missing else f"nothing gives {', '.join(spare)}"
        raise InvalidSettingError(where, problem, remedy="name the parameters as the uri's variables")


def _check_new(where: str, known: bool) -> None:
    if known:
        raise InvalidSettingError(where, "there is one already", remedy="give one of them another name")
