"""Short forms of a skill for lists: its call as a signature, and the first sentences of its description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_SIGNATURE = 400
MAX_SENTENCES = 200
"""Characters of further sentences; the first one is whole up to twice as many."""

_MAX_CHOICES = 6
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^a-z])|\n\s*\n")


def render_signature(skill_id: str, schema: Mapping[str, Any] | None) -> str:
    """The call of a skill with its parameters, such as ``book(city: string, nights?: integer)``.

    A ``?`` marks parameters that may be left out. Names come before types where there is not room for both.
    """
    if schema is None:
        return f"{skill_id}()"
    for with_types in (True, False):
        text = f"{skill_id}({_render_fields(schema, with_types=with_types)})"
        if len(text) <= MAX_SIGNATURE:
            return text
    return text[: MAX_SIGNATURE - 2] + "…)"


def _render_fields(schema: Mapping[str, Any], *, with_types: bool, depth: int = 0) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return "" if schema.get("type") == "object" else render_type(schema, depth)
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    names = sorted(properties, key=lambda name: name not in needed)
    fields: list[str] = []
    for name in names:
        mark = "" if name in needed else "?"
        fields.append(
            f"{name}{mark}: {render_type(properties[name], depth)}" if with_types else f"{name}{mark}"
        )
    return ", ".join(fields)


def render_type(schema: Any, depth: int = 0) -> str:
    """The type of a value in a few characters: ``string[]``, ``"a"|"b"``, ``{x: number}``."""
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(choices := schema.get("enum"), list) and choices:
        shown = [
            f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices[:_MAX_CHOICES]
        ]
        return "|".join([*shown, "…"] if len(choices) > _MAX_CHOICES else shown)
    for key in ("anyOf", "oneOf"):
        if isinstance(forms := schema.get(key), list):
            kinds = dict.fromkeys(render_type(form, depth) for form in forms)
            kinds.pop("null", None)
            return "|".join(kinds) or "null"
    kind = schema.get("type")
    if isinstance(kind, list):
        return "|".join(str(name) for name in kind if name != "null")
    if kind == "array":
        return f"{render_type(schema.get('items'), depth)}[]"
    if (kind == "object" or "properties" in schema) and depth == 0 and schema.get("properties"):
        return f"{{{_render_fields(schema, with_types=True, depth=1)}}}"
    return kind if isinstance(kind, str) else "any"


def first_sentences(text: str) -> str:
    """The first sentence, and those after it that fit; sentences are not cut unless one is very long."""
    shown = ""
    for sentence in _SENTENCE_END.split(text.strip()):
        sentence = " ".join(sentence.split())
        if shown and len(shown) + 1 + len(sentence) > MAX_SENTENCES:
            break
        shown = f"{shown} {sentence}".strip()
    if len(shown) <= 2 * MAX_SENTENCES:
        return shown
    cut = shown[: 2 * MAX_SENTENCES - 1]
    return cut[: cut.rfind(" ")] + "…" if " " in cut else cut + "…"
