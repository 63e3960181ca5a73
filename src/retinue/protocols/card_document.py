"""Pure: an agent record as a page of Markdown, for people and for tools that keep documents (P-21).

Everything in a card is a stranger's text, so nothing of it is taken for Markdown, and the commands are
quoted for the shell.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from retinue.core.record import AgentRecord, Example, Schema, Skill
from retinue.protocols.markdown import code, escape, fence, one_line, paragraphs, table
from retinue.protocols.retinue_block import list_shown_skills
from retinue.protocols.schema_fields import Field, SchemaReader

MAX_ROWS = 200
"""Rows of one table; a schema with more is told up to here."""

_MESH = frozenset({"exposed", "mesh"})
_EFFECTS = {
    "read_only": "changes nothing",
    "destructive": "may destroy something",
    "idempotent": "may be repeated without another effect",
    "open_world": "reaches beyond the mesh",
    "runs_code": "runs code, and wants the token of the mesh",
}


def render_document(record: AgentRecord, *, scopes: frozenset[str] = _MESH) -> str:
    """The page of one agent, with the skills that a reader with these scopes may see."""
    return "\n".join(_page(record, list_shown_skills(record, scopes))) + "\n"


def _page(record: AgentRecord, skills: tuple[Skill, ...]) -> Iterator[str]:
    yield f"# {escape(record.title or '') or code(record.name)}"
    for paragraph in paragraphs(record.description):
        yield from ("", paragraph)
    yield ""
    yield from _facts(
        {
            "Name": code(record.name),
            "Version": code(record.version or ""),
            "URL": code(record.url or ""),
            "Topics": _join(record.topics),
            "Languages": _join(record.languages),
            "Labels": ", ".join(code(f"{key}={value}") for key, value in record.labels.items()),
            "Maintainer": escape(record.maintainer or ""),
            "Provider": escape(record.provider or ""),
        }
    )
    for skill in skills:
        yield ""
        yield from _skill(record, skill)


def _skill(record: AgentRecord, skill: Skill) -> Iterator[str]:
    title = escape(skill.title or "")
    yield f"## {code(skill.id)}" + (f": {title}" if title else "")
    for paragraph in paragraphs(skill.description):
        yield from ("", paragraph)
    effects = [said for hint, said in _EFFECTS.items() if getattr(skill.hints, hint)]
    facts = {
        "Tags": _join(skill.tags),
        "Roles": _join(skill.roles),
        "Effects": ", ".join(effects),
        "Time limit": f"{skill.timeout_s:g} s" if skill.timeout_s else "",
    }
    if any(facts.values()):
        yield ""
        yield from _facts(facts)
    yield from ("", "### Parameters", "")
    yield from _schema(skill.input_schema, "Parameter")
    yield from ("", "### Result", "")
    yield from _schema(skill.output_schema, "Field")
    told = [line for example in skill.examples if (line := _example(example))]
    if told:
        yield from ("", "### Examples", "", *told)
    yield from ("", "### Call it", "")
    yield from fence("console", _commands(record, skill))


def _schema(schema: Schema | None, heading: str) -> Iterator[str]:
    if schema is None:
        yield "The card does not say."
        return
    reader = SchemaReader(schema)
    kind = reader.say_type()
    rows = list(islice(reader.list_fields(), MAX_ROWS + 1))
    if kind not in ("object", "any") or not rows:
        yield "None." if kind == "object" and heading == "Parameter" else f"Type: {code(kind)}."
        if rows:
            yield ""
    if rows:
        yield from table((heading, "Type", "Required", "Default", "Description"), map(_row, rows[:MAX_ROWS]))
    if len(rows) > MAX_ROWS:
        yield from ("", f"There are more than these {MAX_ROWS}; the card has them all.")


def _row(field: Field) -> tuple[str, ...]:
    default = "" if field.default is ... else code(_dump(field.default))
    required = "yes" if field.required else "no"
    return code(field.path), code(field.type), required, default, escape(field.description)


def _example(example: Example) -> str:
    parts = [escape(example.text or "")]
    if example.arguments is not None:
        parts.append(code(_dump(example.arguments)))
    line = ": ".join(part for part in parts if part)
    given = "" if example.result is None else f" gives {code(_dump(example.result))}"
    return f"- {line}{given}" if line else ""


def _commands(record: AgentRecord, skill: Skill) -> Iterator[str]:
    arguments = next((one.arguments for one in skill.examples if one.arguments is not None), None)
    if arguments is None:
        made = SchemaReader(skill.input_schema or {}).make_example()
        arguments = made if isinstance(made, Mapping) else {}
    names = [f"--agent={record.name}", "--", skill.id]
    if not skill.id.startswith("-"):
        names.remove("--")
    if all(name.isprintable() for name in names):
        yield f"$ retinue call {shlex.join([*names, _dump(arguments)])}"
    else:
        yield "# an id with control characters cannot be typed: see the card"
    url = record.url or ""
    if url.startswith(("http://", "https://")) and url.isprintable():
        body = {"jsonrpc": "2.0", "method": skill.id, "params": arguments, "id": "1"}
        yield f"$ curl -s {shlex.quote(url.rstrip('/') + '/execute')} -H 'Content-Type: application/json' \\"
        if skill.hints.runs_code:
            yield '    -H "Authorization: Bearer $TOKEN" \\'
        yield f"    -d {shlex.quote(_dump(body))}"


def _facts(facts: Mapping[str, str]) -> Iterator[str]:
    return (f"- **{label}**: {value}" for label, value in facts.items() if value)


def _join(texts: tuple[str, ...]) -> str:
    return ", ".join(said for text in texts if (said := escape(text)))


def _dump(value: Any) -> str:
    """JSON in one line; what a terminal would not show is written as an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() and one_line(text) == text else json.dumps(value)
