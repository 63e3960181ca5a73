"""Codec of the pallet card: the JSON of seed 001 ↔ AgentRecord (P-06, P-20, specification 2.1).

Facts without a field in the card go into its top-level ``retinue`` object, which is absent when there are
none. Unknown keys of a card are kept in ``extra["pallet"]``, and the order of its keys, where it differs
from ours, in ``extra["pallet_keys"]``, so that parsing and rendering gives the same JSON. This module does
no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from retinue.cards.retinue_block import (
    BlockError,
    list_shown_skills,
    parse_block,
    parse_skill_block,
    render_block,
)
from retinue.core.errors import MalformedArtifactError
from retinue.core.json_values import MAX_DEPTH, is_nested_deeper, name_shape
from retinue.core.record import AgentRecord, Endpoint, Skill

DIALECT = "pallet"
KEY_ORDER = "pallet_keys"

MAX_CARD_BYTES = 1024 * 1024

_CARD_ORDER = ("name", "url", "version", "description", "maintainer", "metadata", "skills", "retinue")
_SKILL_ORDER = ("id", "description", "input_schema", "output_schema")


def parse_card(raw: bytes, *, reference: str) -> AgentRecord:
    """Parse a card; ``reference`` names it in errors. A card without version or url is accepted.

    Raises MalformedArtifactError, which names the field, the shape found and the remedy.
    """
    try:
        return _parse_card(decode_card(raw))
    except (FieldError, BlockError) as error:
        raise MalformedArtifactError(reference, str(error)) from None


def parse_skill(raw: bytes, skill_id: str, *, reference: str) -> Skill | None:
    """One skill of a card, at a third of the cost of `parse_card`; None where the card does not have it.

    Raises MalformedArtifactError for the parts that it reads; other parts are not checked.
    """
    try:
        card = decode_card(raw)
        entries = card.get("skills")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("id") == skill_id:
                skill, block = _parse_skill(entry, "skills"), card.get("retinue")
                return skill if block is None else parse_skill_block(skill, block)
    except (FieldError, BlockError) as error:
        raise MalformedArtifactError(reference, str(error)) from None
    return None


def render_card(record: AgentRecord, *, scopes: frozenset[str]) -> dict[str, Any]:
    """The card that a reader with these scopes may see; private skills are never included.

    The keys have the order in which they were parsed, otherwise the order of the seed.
    """
    shown = list_shown_skills(record, scopes)
    card: dict[str, Any] = {
        "name": record.name,
        "url": record.url,
        "version": record.version,
        "description": record.description,
        "maintainer": record.maintainer,
        "metadata": _render_metadata(record),
        "skills": [_render_skill(skill) for skill in shown],
        "retinue": render_block(record, scopes=scopes),
    }
    if not shown and KEY_ORDER in record.extra and "skills" not in record.extra[KEY_ORDER]:
        del card["skills"]
    return _restore(
        {key: value for key, value in card.items() if value or key == "skills"}, record, _CARD_ORDER
    )


def encode_card(card: Mapping[str, Any]) -> bytes:
    """The bytes of a rendered card, as served and published."""
    return orjson.dumps(card)


class FieldError(ValueError):
    """A field is malformed; the message names the field, the shape found and the remedy."""


def decode_card(raw: bytes) -> dict[str, Any]:
    """The JSON object of a card. Raises FieldError for another form, size or depth."""
    if len(raw) > MAX_CARD_BYTES:
        raise FieldError(f"the card has {len(raw):,} bytes; make it at most {MAX_CARD_BYTES:,}")
    try:
        card = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        problem = f"the card is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise FieldError(problem) from None
    if not isinstance(card, dict):
        raise FieldError(f"the card is {name_shape(card)}; make it an object")
    if is_nested_deeper(raw, card):
        raise FieldError(f"the card is nested over {MAX_DEPTH} levels; flatten it")
    return card


def _parse_card(card: dict[str, Any]) -> AgentRecord:
    left = dict(card)
    name = _take_name(left, "name", "name")
    url = _take_text(left, "url", "url")
    metadata = left.get("metadata")
    labels, annotations = _read_labels(metadata, "labels"), _read_labels(metadata, "annotations")
    written = {key: value for key, value in (("labels", labels), ("annotations", annotations)) if value}
    if metadata and orjson.dumps(metadata) == orjson.dumps(written):
        del left["metadata"]
    # In cards of other software a maintainer is often an object, which is kept as an unknown key.
    understood = isinstance(left.get("maintainer"), str)
    maintainer = _take_text(left, "maintainer", "maintainer") if understood else None
    block = left.pop("retinue", None)
    record = AgentRecord(
        name=name,
        version=_take_text(left, "version", "version"),
        description=_take_text(left, "description", "description") or "",
        maintainer=maintainer,
        endpoints=(Endpoint("execute", url),) if url else (),
        skills=_parse_skills(left.pop("skills", [])),
        labels=labels,
        annotations=annotations,
        extra=_remember(card, left, _CARD_ORDER),
    )
    return record if block is None else parse_block(record, block)


def _parse_skills(entries: Any) -> tuple[Skill, ...]:
    if not isinstance(entries, list):
        raise FieldError(f"skills is {name_shape(entries)}; make it a list of objects")
    skills = tuple(_parse_skill(entry, f"skills[{index}]") for index, entry in enumerate(entries))
    seen: set[str] = set()
    for index, skill in enumerate(skills):
        if skill.id in seen:
            raise FieldError(f"skills[{index}].id repeats {skill.id!r}; give each skill its own id")
        seen.add(skill.id)
    return skills


def _parse_skill(entry: Any, at: str) -> Skill:
    if not isinstance(entry, dict):
        raise FieldError(f"{at} is {name_shape(entry)}; make it an object with an id")
    left = dict(entry)
    return Skill(
        id=_take_name(left, "id", f"{at}.id"),
        description=_take_text(left, "description", f"{at}.description") or "",
        input_schema=_take_schema(left, "input_schema", f"{at}.input_schema"),
        output_schema=_take_schema(left, "output_schema", f"{at}.output_schema"),
        extra=_remember(entry, left, _SKILL_ORDER),
    )


def _render_skill(skill: Skill) -> dict[str, Any]:
    rendered = {
        "id": skill.id,
        "description": skill.description or None,
        "input_schema": skill.input_schema,
        "output_schema": skill.output_schema,
    }
    facts = {key: value for key, value in rendered.items() if value is not None}
    return _restore(facts, skill, _SKILL_ORDER)


def _render_metadata(record: AgentRecord) -> dict[str, Any]:
    kept = record.extra.get(DIALECT, {}).get("metadata")
    metadata = dict(kept) if isinstance(kept, dict) else {}
    for part, mine in (("labels", record.labels), ("annotations", record.annotations)):
        # Labels keep the form in which they were parsed unless the record has changed.
        if mine != _read_labels(metadata, part):
            metadata[part] = dict(mine)
    return metadata


def _read_labels(metadata: Any, part: str) -> dict[str, str]:
    labels = metadata.get(part) if isinstance(metadata, dict) else None
    if not isinstance(labels, dict):
        return {}
    return {
        key: value if isinstance(value, str) else orjson.dumps(value).decode()
        for key, value in labels.items()
        if isinstance(value, str | int | float)
    }


def _take_name(left: dict[str, Any], key: str, at: str) -> str:
    value = left.pop(key, None)
    if not isinstance(value, str):
        shape = "missing" if value is None else name_shape(value)
        raise FieldError(f"{at} is {shape}; give it a non-empty string")
    if not value.strip():
        raise FieldError(f"{at} is empty; give it a non-empty string")
    return value


def _take_text(left: dict[str, Any], key: str, at: str) -> str | None:
    value = left.get(key)
    if value is None or value == "":
        # Kept as an unknown key, so that the card renders as it was.
        return None
    if not isinstance(value, str):
        raise FieldError(f"{at} is {name_shape(value)}; make it a string")
    del left[key]
    return value


def _take_schema(left: dict[str, Any], key: str, at: str) -> Mapping[str, Any] | None:
    if left.get(key) is None:
        return None
    value = left.pop(key)
    if not isinstance(value, dict):
        raise FieldError(f"{at} is {name_shape(value)}; make it a JSON Schema object")
    return value


def _remember(source: Mapping[str, Any], left: Mapping[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    extra: dict[str, Any] = {DIALECT: left} if left else {}
    keys = tuple(source)
    if keys != _arrange(source, order) or (order is _CARD_ORDER and "skills" not in source):
        extra[KEY_ORDER] = keys
    return extra


def _restore(rendered: dict[str, Any], thing: AgentRecord | Skill, order: tuple[str, ...]) -> dict[str, Any]:
    merged = {**thing.extra.get(DIALECT, {}), **rendered}
    return {key: merged[key] for key in _arrange(merged, thing.extra.get(KEY_ORDER, order))}


def _arrange(source: Mapping[str, Any], order: tuple[str, ...]) -> tuple[str, ...]:
    ours = [key for key in order if key in source]
    return tuple(ours if len(ours) == len(source) else [*ours, *(key for key in source if key not in order)])
