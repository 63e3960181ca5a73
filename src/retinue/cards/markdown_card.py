"""Renders an agent record as a Markdown page for people and document tools (P-21).

The text of a card is untrusted. It is escaped so that it cannot start a heading, a link, a tag or a table
cell (GitHub's dialect), and the commands are quoted for the shell. This module does no I/O.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from retinue.cards.retinue_block import list_shown_skills
from retinue.cards.schema_fields import SchemaField, SchemaReader
from retinue.core.durations import render_duration
from retinue.core.record import AgentRecord, Example, Schema, Skill

MAX_ROWS = 200
"""Maximum number of rows of a table."""

_MESH = frozenset({"exposed", "mesh"})

_EFFECTS = {
    "read_only": "changes nothing",
    "destructive": "may delete or overwrite data",
    "idempotent": "can be repeated without further effect",
    "open_world": "accesses systems outside the mesh",
    "runs_code": "runs code, and needs the token of the mesh",
}

_SPECIAL = re.compile(r"([\\`*_\[\]<>#~&!$])")
_BLOCK_START = re.compile(r"^([-+=]|\d{1,9}(?=[.)]))")
_PLAIN_CODE = re.compile(r"[^`|\\]+")
_BLANK_LINE = re.compile(r"\n\s*\n")


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
    effects = [effect for hint, effect in _EFFECTS.items() if getattr(skill.hints, hint)]
    facts = {
        "Tags": _join(skill.tags),
        "Roles": _join(skill.roles),
        "Effects": ", ".join(effects),
        "Time limit": f"{render_duration(skill.timeout_s)}" if skill.timeout_s else "",
    }
    if any(facts.values()):
        yield ""
        yield from _facts(facts)
    yield from ("", "### Parameters", "")
    yield from _schema(skill.input_schema, "Parameter")
    yield from ("", "### Result", "")
    yield from _schema(skill.output_schema, "Field")
    examples = [line for example in skill.examples if (line := _example(example))]
    if examples:
        yield from ("", "### Examples", "", *examples)
    yield from ("", "### Call it", "")
    yield from fence("console", _commands(record, skill))


def _schema(schema: Schema | None, heading: str) -> Iterator[str]:
    if schema is None:
        yield "Not specified in the card."
        return
    reader = SchemaReader(schema)
    kind = reader.type_text()
    rows = list(islice(reader.list_fields(), MAX_ROWS + 1))
    if kind not in ("object", "any") or not rows:
        yield "None." if kind == "object" and heading == "Parameter" else f"Type: {code(kind)}."
        if rows:
            yield ""
    if rows:
        yield from table((heading, "Type", "Required", "Default", "Description"), map(_row, rows[:MAX_ROWS]))
    if len(rows) > MAX_ROWS:
        yield from ("", f"Only the first {MAX_ROWS} are listed; the card has all of them.")


def _row(field: SchemaField) -> tuple[str, ...]:
    default = "" if field.default is ... else code(_dump(field.default))
    required = "yes" if field.required else "no"
    return code(field.path), code(field.type), required, default, escape(field.description)


def _example(example: Example) -> str:
    parts = [escape(example.text or "")]
    if example.arguments is not None:
        parts.append(code(_dump(example.arguments)))
    line = ": ".join(part for part in parts if part)
    result = "" if example.result is None else f" gives {code(_dump(example.result))}"
    return f"- {line}{result}" if line else ""


def _commands(record: AgentRecord, skill: Skill) -> Iterator[str]:
    arguments = next((example.arguments for example in skill.examples if example.arguments is not None), None)
    if arguments is None:
        made = SchemaReader(skill.input_schema or {}).make_example()
        arguments = made if isinstance(made, Mapping) else {}
    names = [f"--agent={record.name}", "--", skill.id]
    if not skill.id.startswith("-"):
        names.remove("--")
    if all(name.isprintable() for name in names):
        yield f"$ retinue call {shlex.join([*names, _dump(arguments)])}"
    else:
        yield "# the id has control characters and cannot be typed: see the card"
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
    return ", ".join(escaped for text in texts if (escaped := escape(text)))


def _dump(value: Any) -> str:
    """JSON in one line; characters that a terminal would not show are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() and one_line(text) == text else json.dumps(value)


def one_line(text: str) -> str:
    """The text without line breaks, control and direction characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def escape(text: str) -> str:
    """The text as one line that renders as written in a paragraph, a list or a table cell."""
    line = _SPECIAL.sub(r"\\\1", one_line(text))
    # The dot of a number would start a list; digits cannot be escaped, so an entity is used.
    line = _BLOCK_START.sub(lambda start: f"&#{ord(start[0][0])};{start[0][1:]}", line)
    # Renderers disagree about a pipe after a backslash, but not about an entity.
    return line.replace("|", "&#124;")


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a longer text, each escaped to one line."""
    parts = _BLANK_LINE.split(text.replace("\r\n", "\n"))
    return [line for line in map(escape, parts) if line]


def code(text: str) -> str:
    """The text as inline code; "" for text without visible characters."""
    line = one_line(text)
    if not line:
        return ""
    if _PLAIN_CODE.fullmatch(line):
        return f"`{line}`"
    entities = "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in line)
    return f"<code>{entities}</code>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; the cells must be escaped or code."""
    return [
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def fence(language: str, lines: Iterable[str]) -> list[str]:
    """A code block with a fence that its content cannot close."""
    inside = list(lines)
    longest = max((len(run) for line in inside for run in re.findall("`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    return [f"{mark}{language}", *inside, mark]
