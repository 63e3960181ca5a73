"""Reads the target of ``publish``: an agent card, a workflow, or a Python agent whose card is rendered.

Files are checked, then published byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from retinue.cards.card_checks import check_card
from retinue.cards.pallet_card import encode_card, parse_card, render_card
from retinue.core.errors import InvalidSettingError, TooLargeError
from retinue.core.record import is_visible
from retinue.mesh.directory.listing_index import url_origin
from retinue.mesh.schema.checks import check_skill
from retinue.oci.codec.artifacts import MAX_CONTENT_BYTES
from retinue.runtime.loading.targets import load_target

PUBLISHED_SCOPES = frozenset({"exposed", "mesh"})
"""A published card contains the skills that the mesh may see; each states its own visibility."""

_YAML = frozenset({".yaml", ".yml"})
_JSON = frozenset({".json", ".jsonc"})


@dataclass(frozen=True, slots=True)
class Card:
    """An agent card to publish: its bytes, and the facts for the manifest."""

    name: str
    content: bytes
    version: str | None
    skills: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkflowText:
    """A checked workflow to publish, with the bytes of its file."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class PromptText:
    """The checked file of an agent in Markdown, byte for byte."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class PolicyText:
    """A valid file of policies, byte for byte."""

    name: str
    content: bytes


Publishable = Card | WorkflowText | PromptText | PolicyText


def read_target(text: str, *, url: str | None = None, weight: int | None = None) -> Publishable:
    """Read a card (``.json``), a workflow (``.yaml`` or ``.json``), a file in Markdown or a Python agent.

    ``url`` is the address of a Python agent, or of one in Markdown, whose card is read then; a card file
    states its own. A card is published byte for byte unless ``weight`` sets its share of the calls. Raises
    InvalidSettingError, MalformedArtifactError, SchemaRefusedError, DefinitionError, TooLargeError.
    """
    publishable = _read_target(text, url)
    if weight is None:
        return publishable
    if not isinstance(publishable, Card):
        raise InvalidSettingError("--weight", "only a card has a weight", remedy="omit --weight")
    record = replace(parse_card(publishable.content, reference=text), weight=weight)
    return replace(publishable, content=encode_card(render_card(record, scopes=PUBLISHED_SCOPES)))


def _read_target(text: str, url: str | None) -> Publishable:
    path = Path(text)
    if path.suffix == ".md" and url is None:
        # loads YAML, which a process that publishes a card does not need
        from retinue.runtime.loading.markdown_files import read_definition

        definition = read_definition(path)
        return PromptText(definition.name, definition.content.encode())
    if path.suffix == ".cedar":
        return _as_policy(path, _read_file(path))
    if path.suffix in _YAML:
        return _as_workflow(path, _read_file(path))
    if path.suffix in _JSON:
        content = _read_file(path)
        facts = _find_object(content)
        if "steps" in facts:
            return _as_workflow(path, content)
        if "skills" in facts or ("url" in facts and "entry" not in facts):
            return _as_card(path, content, url)
    return _render_agent(text, url)


def _read_file(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_CONTENT_BYTES:
            raise TooLargeError(str(path), MAX_CONTENT_BYTES)
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidSettingError("target", f"no file {path}", remedy="check the path") from None
    except OSError as error:
        raise InvalidSettingError(
            "target", f"{path} cannot be read: {error.strerror}", remedy="check the file"
        ) from error


def _find_object(content: bytes) -> dict[str, Any]:
    """The JSON object in a file; empty for anything else, such as an ``agent.json`` with comments."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _as_card(path: Path, content: bytes, url: str | None) -> Card:
    if url is not None:
        raise InvalidSettingError(
            "--url", f"{path.name} is a card and states its own URL", remedy="omit --url, or edit the card"
        )
    record = parse_card(content, reference=path.name)
    check_card(record, content, reference=path.name)
    if record.url is None:
        raise InvalidSettingError(
            f"{path.name}: url", "it is missing", remedy="add the address of the agent: http://host:port"
        )
    for skill in record.skills:
        check_skill(skill)
    shown = tuple(skill.id for skill in record.skills if is_visible(skill.visibility, PUBLISHED_SCOPES))
    return Card(record.name, content, record.version, shown)


def _as_workflow(path: Path, content: bytes) -> WorkflowText:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidSettingError(
            path.name, "it is not UTF-8", remedy="save the workflow as UTF-8 text"
        ) from None
    # loads YAML and CEL, which a process that publishes a card does not need
    from retinue.workflows.definitions.loading import load_definition

    return WorkflowText(load_definition(text, source=path.name).name, content)


def _as_policy(path: Path, content: bytes) -> PolicyText:
    from retinue.runtime.loading.policy_files import check_library

    check_library([path])
    from retinue.policies.policy_set import load_policies

    try:
        load_policies({path.name: content.decode("utf-8")})
    except UnicodeDecodeError:
        raise InvalidSettingError(path.name, "it is not UTF-8", remedy="save it as UTF-8 text") from None
    return PolicyText(path.stem, content)


def _render_agent(text: str, url: str | None) -> Card:
    agent = load_target(text).agent
    if url is None:
        raise InvalidSettingError(
            "--url",
            f"the card of {agent.name} needs the address of the agent",
            remedy=f"add --url http://host:port, or let retinue serve {text} publish it",
        )
    origin = url_origin(url)
    if origin is None or origin[0] not in ("http", "https"):
        raise InvalidSettingError("--url", f"{url!r} is not an address", remedy="write http://host:port")
    record = agent.record(url)
    card = render_card(record, scopes=PUBLISHED_SCOPES)
    content = encode_card(card)
    check_card(record, content, reference=text)
    return Card(agent.name, content, agent.version, tuple(skill["id"] for skill in card["skills"]))
