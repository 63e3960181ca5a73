"""Codec of the A2A agent card, versions 1.x and 0.3 ↔ AgentRecord (specification 2, doubt 4).

Facts without a field in the card are the parameters of the extension `EXTENSION`: the ``retinue`` object of
the pallet card, and the schemas of the skills. Keys that are neither are kept in ``extra["a2a"]`` of the
record and its skills. A card of version 0.3 has the top-level keys of that version in addition to those of
1.x, and readers of 1.x find their interfaces in it. A card of 1.x has no key that 1.x does not define.
This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from retinue.cards.pallet_card import FieldError, decode_card
from retinue.cards.retinue_block import BlockError, list_shown_skills, parse_block, render_block
from retinue.core.errors import MalformedArtifactError
from retinue.core.json_values import name_shape
from retinue.core.record import AgentRecord, Endpoint, Example, Schema, Skill

DIALECT = "a2a"

CARD_PATH = "/.well-known/agent-card.json"
CARD_MEDIA_TYPE = "application/a2a-agent-card+json"

EXTENSION = "https://retinue.dev/a2a/extensions/retinue/v1"
"""The extension whose parameters hold the facts of a record for which the card has no field."""

PROTOCOL = "a2a"
"""The protocol of an `Endpoint` that is asked over A2A's JSON-RPC."""

V1, V03 = "1.0", "0.3"
NO_VERSION = "0"
"""The version in the card of an agent that has none, because the field is required."""

DEFAULT_MODES = ("application/json", "text/plain")
MAX_EXAMPLES = 20

_BINDINGS = {"JSONRPC": PROTOCOL, "HTTP+JSON": "a2a-http", "GRPC": "a2a-grpc"}
_CARD_KEYS = frozenset({"name", "description", "version", "skills", "signatures"})
_LEGACY_KEYS = frozenset(
    {
        "url",
        "preferredTransport",
        "additionalInterfaces",
        "protocolVersion",
        "supportsAuthenticatedExtendedCard",
    }
)
_V1_KEYS = frozenset(
    {"provider", "documentationUrl", "iconUrl", "securitySchemes", "securityRequirements", "signatures"}
)
_V1_SKILL_KEYS = frozenset({"inputModes", "outputModes", "securityRequirements"})
_V1_EXTENSION_KEYS = frozenset({"uri", "description", "required", "params"})
"""Keys of 1.x that a card may have beside those that are rendered here; its schemas allow no others."""

_SKILL_KEYS = frozenset({"id", "name", "description", "tags", "examples"})


@dataclass(frozen=True, slots=True)
class CardOptions:
    """The capabilities of the endpoint that serves a card, and the form of the card.

    ``legacy``: it is a card of 0.3, which readers of 1.x read as well. ``versions`` are those that the
    endpoint speaks, the preferred one first.
    """

    streaming: bool = True
    push_notifications: bool = False
    extended_card: bool = False
    legacy: bool = True
    versions: tuple[str, ...] = (V1, V03)


def render_agent_card(
    record: AgentRecord,
    url: str,
    *,
    scopes: frozenset[str],
    options: CardOptions = CardOptions(),
) -> dict[str, Any]:
    """The A2A card that a reader with these scopes may see; ``url`` is that of the A2A endpoint, as given.

    Private skills are never included. The card is not signed.
    """
    kept = record.extra.get(DIALECT, {})
    shown = list_shown_skills(record, scopes)
    capabilities: dict[str, Any] = {
        "streaming": options.streaming,
        "pushNotifications": options.push_notifications,
        "extendedAgentCard": options.extended_card,
    }
    others = [extension for extension in _extensions_of(kept) if extension.get("uri") != EXTENSION]
    if not options.legacy:
        others = [_only(_V1_EXTENSION_KEYS, extension) for extension in others]
    params = _render_params(record, shown, scopes)
    if params:
        described = "Schemas, roles, traits and further facts of an agent of Retinue"
        others.append({"uri": EXTENSION, "description": described, "params": params})
    if others:
        capabilities["extensions"] = others
    card: dict[str, Any] = {
        "name": record.name,
        "description": record.description or record.title or record.name,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version}
            for version in options.versions
        ],
        "version": record.version or NO_VERSION,
        "capabilities": capabilities,
        "defaultInputModes": list(DEFAULT_MODES),
        "defaultOutputModes": list(DEFAULT_MODES),
        "skills": [_render_skill(skill, legacy=options.legacy) for skill in shown],
    }
    if options.legacy:
        card |= {"url": url, "preferredTransport": "JSONRPC", "protocolVersion": "0.3.0"}
        if options.extended_card:
            card["supportsAuthenticatedExtendedCard"] = True
    else:
        kept = _only(_V1_KEYS, kept)
        if _has_old_schemes(kept):
            # they say how to log in at the agent's own address, in the form of 0.3
            kept = {key: value for key, value in kept.items() if not key.startswith("security")}
    left = {key: value for key, value in kept.items() if key not in card}
    return {**card, **left}


def _only(keys: frozenset[str], source: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key in keys}


def _has_old_schemes(card: Mapping[str, Any]) -> bool:
    """Whether the security schemes are those of 0.3: each is an object with a type."""
    schemes = card.get("securitySchemes")
    if not isinstance(schemes, dict):
        return False
    return any(not isinstance(scheme, dict) or "type" in scheme for scheme in schemes.values())


def parse_agent_card(raw: bytes, *, reference: str) -> AgentRecord:
    """Parse an A2A card of version 1.x or 0.3; ``reference`` names it in errors.

    The endpoints are those of the card, JSON-RPC ones as ``a2a`` with their version. Signatures are neither
    checked nor kept. Raises MalformedArtifactError, which names the field, the shape found and the remedy.
    """
    try:
        return _parse(decode_card(raw))
    except (FieldError, BlockError) as error:
        raise MalformedArtifactError(reference, str(error)) from None


def find_interface(record: AgentRecord) -> Endpoint | None:
    """The JSON-RPC endpoint to ask: of version 1.x if there is one, else of 0.3."""
    interfaces = [endpoint for endpoint in record.endpoints if endpoint.protocol == PROTOCOL]
    versions = {V1: 0, V03: 1}
    return min(interfaces, key=lambda endpoint: versions.get(endpoint.wire_version or "", 2), default=None)


def _parse(card: dict[str, Any]) -> AgentRecord:
    name = _text(card, "name")
    if not name.strip():
        raise FieldError("name is missing; give it a non-empty string")
    description, version = _text(card, "description"), _text(card, "version")
    extensions = _extensions_of(card)
    params = next((each.get("params") for each in extensions if each.get("uri") == EXTENSION), None) or {}
    if not isinstance(params, dict):
        raise FieldError(f"the parameters of {EXTENSION} are {name_shape(params)}; make them an object")
    described = _object(params, "card")
    schemas = _object(params, "schemas")
    left = {key: value for key, value in card.items() if key not in _CARD_KEYS | _LEGACY_KEYS}
    for key in ("supportedInterfaces", "defaultInputModes", "defaultOutputModes"):
        left.pop(key, None)
    extensions = [extension for extension in _extensions_of(card) if extension.get("uri") != EXTENSION]
    left.pop("capabilities", None)
    if extensions:
        left["capabilities"] = {"extensions": extensions}
    record = AgentRecord(
        name=name,
        version=None if version in ("", NO_VERSION) else version,
        description="" if description in (name, _text(params, "title")) else description,
        maintainer=_text(described, "maintainer") or None,
        provider=_text(_object(card, "provider"), "organization") or None,
        endpoints=_parse_interfaces(card),
        skills=_parse_skills(card.get("skills", []), schemas),
        labels=_texts(described, "labels"),
        annotations=_texts(described, "annotations"),
        extra={DIALECT: left} if left else {},
    )
    block = {key: value for key, value in params.items() if key not in ("card", "schemas")}
    if not block:
        return record
    read = parse_block(record, {**block, "v": _whole(block.get("v", 1))})
    # where it is asked over A2A is said by the card itself, which other readers see
    return replace(
        read, endpoints=(*record.endpoints, *(e for e in read.endpoints if e.protocol != PROTOCOL))
    )


def _parse_interfaces(card: Mapping[str, Any]) -> tuple[Endpoint, ...]:
    """The interfaces of 1.x; those of 0.3 only in a card without them, because 1.x signatures skip them."""
    interfaces: list[tuple[Any, Any, Any]] = []
    if isinstance(card.get("supportedInterfaces"), list):
        interfaces += [
            (interface.get("url"), interface.get("protocolBinding"), interface.get("protocolVersion", ""))
            for interface in card["supportedInterfaces"]
            if isinstance(interface, dict)
        ]
    elif card.get("url"):
        version = card.get("protocolVersion", "0.3.0")
        interfaces.append((card["url"], card.get("preferredTransport", "JSONRPC"), version))
        others = card.get("additionalInterfaces")
        for interface in others if isinstance(others, list) else ():
            interfaces += (
                [(interface.get("url"), interface.get("transport"), version)]
                if isinstance(interface, dict)
                else []
            )
    endpoints = []
    for url, binding, version in interfaces:
        if not isinstance(url, str) or not url:
            raise FieldError("the url of an interface is missing; give it a non-empty string")
        protocol = _BINDINGS.get(str(binding).upper())
        if protocol is not None:
            endpoints.append(Endpoint(protocol, url, ".".join(str(version).split(".")[:2]) or V1))
    return tuple(dict.fromkeys(endpoints))


def _parse_skills(entries: Any, schemas: Mapping[str, Any]) -> tuple[Skill, ...]:
    if not isinstance(entries, list):
        raise FieldError(f"skills is {name_shape(entries)}; make it a list of objects")
    skills: dict[str, Skill] = {}
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise FieldError(f"skills[{index}] is {name_shape(entry)}; make it an object with an id")
        skill_id = _text(entry, "id")
        if not skill_id.strip():
            raise FieldError(f"skills[{index}].id is missing; give it a non-empty string")
        if skill_id in skills:
            raise FieldError(f"skills[{index}].id repeats {skill_id!r}; give each skill its own id")
        skills[skill_id] = _parse_skill(entry, skill_id, _object(schemas, skill_id))
    return tuple(skills.values())


def _parse_skill(entry: Mapping[str, Any], skill_id: str, schemas: Mapping[str, Any]) -> Skill:
    name, description = _text(entry, "name"), _text(entry, "description")
    tags = tuple(_strings(entry, "tags"))
    left = {key: value for key, value in entry.items() if key not in _SKILL_KEYS}
    return Skill(
        skill_id,
        description="" if description in (skill_id, name) else description,
        title=None if name in ("", skill_id) else name,
        input_schema=_schema(schemas, "input"),
        output_schema=_schema(schemas, "output"),
        tags=() if tags == (skill_id,) else tags,
        examples=tuple(Example(text=text) for text in _strings(entry, "examples")),
        extra={DIALECT: left} if left else {},
    )


def _render_skill(skill: Skill, *, legacy: bool) -> dict[str, Any]:
    name = skill.title or skill.id
    examples = [
        example.text if example.text is not None else orjson.dumps(example.arguments).decode()
        for example in skill.examples
        if example.text is not None or example.arguments is not None
    ]
    rendered: dict[str, Any] = {
        "id": skill.id,
        "name": name,
        "description": skill.description or name,
        # the field is required and must not be empty
        "tags": list(skill.tags) or [skill.id],
    }
    if examples:
        rendered["examples"] = examples[:MAX_EXAMPLES]
    kept = skill.extra.get(DIALECT, {})
    return {**(kept if legacy else _only(_V1_SKILL_KEYS, kept)), **rendered}


def _render_params(record: AgentRecord, shown: tuple[Skill, ...], scopes: frozenset[str]) -> dict[str, Any]:
    params = render_block(record, scopes=scopes)
    if record.url is not None:
        params.setdefault("endpoints", [{"protocol": "execute", "url": record.url}])
    schemas = {
        skill.id: kept
        for skill in shown
        if (kept := {k: v for k, v in (("input", skill.input_schema), ("output", skill.output_schema)) if v})
    }
    card = {
        "maintainer": record.maintainer,
        "labels": dict(record.labels),
        "annotations": dict(record.annotations),
    }
    facts = {key: value for key, value in card.items() if value}
    more: dict[str, Any] = {"schemas": schemas} if schemas else {}
    if facts:
        more["card"] = facts
    return {"v": 1, **params, **more} if params or more else {}


def _extensions_of(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    capabilities = card.get("capabilities")
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    return (
        [extension for extension in extensions if isinstance(extension, dict)]
        if isinstance(extensions, list)
        else []
    )


def _text(source: Mapping[str, Any], key: str) -> str:
    value = source.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise FieldError(f"{key} is {name_shape(value)}; make it a string")
    return value


def _texts(source: Mapping[str, Any], key: str) -> dict[str, str]:
    return {name: value for name, value in _object(source, key).items() if isinstance(value, str)}


def _strings(source: Mapping[str, Any], key: str) -> list[str]:
    value = source.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise FieldError(f"{key} is {name_shape(value)}; make it a list of strings")
    return [text for text in value if isinstance(text, str)]


def _object(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = source.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FieldError(f"{key} is {name_shape(value)}; make it an object")
    return value


def _schema(source: Mapping[str, Any], key: str) -> Schema | None:
    return _whole(_object(source, key)) or None


def _whole(value: Any) -> Any:
    """The value with whole numbers as integers: protobuf writes every number of a struct as a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value
