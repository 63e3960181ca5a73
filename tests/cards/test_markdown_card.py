"""The page of an agent: everything its card says, and nothing that a card could make of the page."""

from __future__ import annotations

import shlex
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from retinue import Agent
from retinue.cards.markdown_card import MAX_ROWS, code, escape, fence, render_document
from retinue.cards.schema_fields import SchemaReader
from retinue.core.record import AgentRecord, Endpoint, Example, Hints, Skill
from tests.requirements import requirement
from tests.strategies import json_objects, records

MARKDOWN = MarkdownIt("commonmark").enable("table")
HOSTILE = st.text(st.sampled_from("`|\\*_[]()<>#~&!$-+=1. \n\tab\u202e"), max_size=24)
PARSED = {
    "type": "object",
    "properties": {
        "module": {"type": "string", "description": "Its name | or path"},
        "limits": {"$ref": "#/$defs/Limits"},
        "cases": {"type": "array", "items": {"$ref": "#/$defs/Case"}},
        "mode": {"enum": ["fast", "whole"], "default": "fast"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "labels": {"type": "object", "additionalProperties": {"type": "string", "format": "uri"}},
    },
    "required": ["module", "limits"],
    "$defs": {
        "Limits": {
            "type": "object",
            "properties": {"seconds": {"type": "integer", "minimum": 5}, "deep": {"type": "boolean"}},
            "required": ["seconds"],
        },
        "Case": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}


def tokens_of(page: str) -> list[Token]:
    return MARKDOWN.parse(page)


def outline(page: str) -> list[tuple[str, str]]:
    """Heading tags with their text as a reader sees it."""
    tokens = tokens_of(page)
    return [
        (token.tag, tokens[index + 1].content)
        for index, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def cells(page: str) -> list[list[str]]:
    """The raw cells of all rows of all tables, headings left out."""
    rows: list[list[str]] = []
    for token, after in zip(tokens_of(page), tokens_of(page)[1:], strict=False):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "td_open":
            rows[-1].append(after.content)
    return [row for row in rows if row]


def commands(page: str) -> list[list[str]]:
    """What each console block would run, word by word."""
    blocks = [token.content for token in tokens_of(page) if token.type == "fence"]
    lines = [line for block in blocks for line in block.replace("\\\n", "").split("\n$ ")]
    return [shlex.split(line.removeprefix("$ ")) for line in lines]


def record(*skills: Skill, **facts: Any) -> AgentRecord:
    endpoints = (Endpoint("execute", "http://127.0.0.1:8001"),)
    return AgentRecord("plan-agent", endpoints=endpoints, skills=skills, **facts)


@requirement("P-21")
def test_the_page_of_an_agent_says_what_its_card_says() -> None:
    agent = Agent(
        "plan-agent",
        version="1.2.0",
        title="The planner",
        description="Plans things.\n\nAnd nothing\nelse.",
        topics=["Planning", "Python"],
    )

    @agent.skill(tags=["planning"], roles=["plan"], examples=["plan it"], read_only=True, timeout_s=60)
    async def create_plan(requirements: str, rounds: int = 2) -> dict[str, str]:
        """Creates plans from requirements."""
        return {"plan": f"{requirements} in {rounds}"}

    assert render_document(agent.record("http://127.0.0.1:8001")) == (
        "# The planner\n\nPlans things.\n\nAnd nothing else.\n\n"
        "- **Name**: `plan-agent`\n"
        "- **Version**: `1.2.0`\n"
        "- **URL**: `http://127.0.0.1:8001`\n"
        "- **Topics**: Planning, Python\n\n"
        "## `create_plan`\n\nCreates plans from requirements.\n\n"
        "- **Tags**: planning\n"
        "- **Roles**: plan\n"
        "- **Effects**: changes nothing\n"
        "- **Time limit**: 1 min\n\n"
        "### Parameters\n\n"
        "| Parameter | Type | Required | Default | Description |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| `requirements` | `string` | yes |  |  |\n"
        "| `rounds` | `integer` | no | `2` |  |\n\n"
        "### Result\n\n"
        "| Field | Type | Required | Default | Description |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| `*` | `string` | no |  |  |\n\n"
        "### Examples\n\n"
        "- plan it\n\n"
        "### Call it\n\n"
        "```console\n"
        '$ retinue call --agent=plan-agent create_plan \'{"requirements": "…"}\'\n'
        "$ curl -s http://127.0.0.1:8001/execute -H 'Content-Type: application/json' \\\n"
        '    -d \'{"jsonrpc": "2.0", "method": "create_plan", "params": {"requirements": "…"}, "id": "1"}\'\n'
        "```\n"
    )


def test_nested_parameters_are_dotted_paths() -> None:
    page = render_document(record(Skill("x", input_schema=PARSED)))
    assert [row[:4] for row in cells(page)] == [
        ["`module`", "`string`", "yes", ""],
        ["`limits`", "`object`", "yes", ""],
        ["`limits.seconds`", "`integer`", "yes", ""],
        ["`limits.deep`", "`boolean`", "no", ""],
        ["`cases`", "`list of object`", "no", ""],
        ["`cases[].name`", "`string`", "yes", ""],
        ["`mode`", '`"fast" or "whole"`', "no", '`"fast"`'],
        ["`note`", "`string or null`", "no", "`null`"],
        ["`labels`", "`object`", "no", ""],
        ["`labels.*`", "`string (uri)`", "no", ""],
    ]
    assert orjson.loads(commands(page)[0][-1]) == {"module": "…", "limits": {"seconds": 5}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (None, "Not specified in the card."),
        ({"type": "string"}, "Type: `string`."),
        ({"type": ["string", "null"]}, "Type: `string or null`."),
        ({"const": 4}, "Type: `4`."),
        ({"enum": list(range(20))}, "or 11 or …`."),
        ({"type": "array"}, "Type: `list`."),
        ({"type": "array", "items": {"type": "number"}}, "Type: `list of number`."),
        ({}, "Type: `any`."),
        ({"type": 7, "required": 3, "properties": [], "items": 1}, "Type: `any`."),
        ({"$ref": "#/$defs/none"}, "Type: `any`."),
        ({"$ref": "https://elsewhere/x"}, "Type: `any`."),
        ({"type": "object", "properties": {}}, "Type: `object`."),
    ],
)
def test_a_result_without_fields_is_told_by_its_type(schema: Any, said: str) -> None:
    assert said in render_document(record(Skill("x", output_schema=schema)))


def test_a_skill_that_takes_nothing_says_so() -> None:
    page = render_document(record(Skill("x", input_schema={"type": "object", "properties": {}})))
    assert "### Parameters\n\nNone.\n" in page


def test_the_example_of_an_author_is_the_one_that_is_shown_and_called() -> None:
    example = Example("plan | json", {"requirements": "it's json"}, {"plan": "p"})
    page = render_document(record(Skill("x", examples=(Example(), example), hints=Hints(runs_code=True))))
    assert orjson.loads(commands(page)[0][-1]) == {"requirements": "it's json"}
    assert '- plan &#124; json: `{"requirements": "it\'s json"}` gives `{"plan": "p"}`' in page
    assert "Authorization: Bearer $TOKEN" in commands(page)[1]


def test_hidden_skills_are_not_on_the_page() -> None:
    hidden, mesh, shown = (Skill(name, visibility=name) for name in ("private", "mesh", "exposed"))
    assert [text for tag, text in outline(render_document(record(hidden, mesh, shown))) if tag == "h2"] == [
        "`mesh`",
        "`exposed`",
    ]
    page = render_document(record(hidden, mesh, shown), scopes=frozenset({"exposed"}))
    assert [text for tag, text in outline(page) if tag == "h2"] == ["`exposed`"]


def test_a_url_or_an_id_that_would_be_an_option_is_not_one() -> None:
    agent = AgentRecord("a", endpoints=(Endpoint("execute", "-o/x"),), skills=(Skill("-x"), Skill("a\x07b")))
    first, second = commands(render_document(agent))
    assert first == ["retinue", "call", "--agent=a", "--", "-x", "{}"]
    assert second[0] == "#"


def test_a_schema_of_references_to_itself_ends() -> None:
    knot = {"anyOf": [{"$ref": "#"}] * 50, "items": {"$ref": "#"}, "properties": {}}
    wide: dict[str, Any] = {
        "type": "object",
        "properties": {f"f{n}": {"$ref": "#"} for n in range(300)},
        "required": [f"f{n}" for n in range(300)],
    }
    page = render_document(record(Skill("x", input_schema=knot), Skill("y", input_schema=wide)))
    assert f"first {MAX_ROWS} are listed" in page
    assert len(cells(page)) == MAX_ROWS


@given(json_objects)
def test_any_schema_can_be_read(schema: dict[str, Any]) -> None:
    reader = SchemaReader(schema)
    assert reader.type_text()
    list(reader.list_fields())
    reader.make_example()


@given(records)
def test_any_card_renders_to_a_page_of_the_same_outline(agent: AgentRecord) -> None:
    page = render_document(agent)
    shown = [skill for skill in agent.skills if skill.visibility != "private"]
    tags = [tag for tag, _ in outline(page)]
    assert tags.count("h1") == 1
    assert tags.count("h2") == len(shown)
    assert all(len(row) == 5 for row in cells(page))
    assert "html_block" not in {token.type for token in tokens_of(page)}


@given(HOSTILE, HOSTILE)
def test_no_text_of_a_card_leaves_its_place(text: str, other: str) -> None:
    schema = {
        "type": "object",
        "properties": {text: {"type": "string", "description": other, "default": text}, "z": {"type": other}},
    }
    skill = Skill(f"a{text}", description=other, title=text, input_schema=schema, tags=(text,))
    page = render_document(record(skill, title=text, description=other, topics=(other,)))
    assert [tag for tag, _ in outline(page)] == ["h1", "h2", "h3", "h3", "h3"]
    assert [len(row) for row in cells(page)] == [5] * len({text, "z"})
    inline = [child for token in tokens_of(page) for child in token.children or ()]
    assert {child.type for child in inline} <= {
        "text",
        "text_special",
        "code_inline",
        "html_inline",
        "strong_open",
        "strong_close",
        "softbreak",
    }
    assert {child.content for child in inline if child.type == "html_inline"} <= {"<code>", "</code>"}


@given(HOSTILE)
def test_escaped_text_reads_as_it_was_written(text: str) -> None:
    (inline,) = [token for token in tokens_of(f"| {escape(text)} |\n|---|\n| x |") if token.content][:1]
    shown = "".join(child.content for child in inline.children or ()) if inline.content != "x" else ""
    assert shown == " ".join(text.replace("\u202e", " ").split())


@given(HOSTILE)
def test_code_reads_as_it_was_written(text: str) -> None:
    (inline,) = [token for token in tokens_of(f"x{code(text)}") if token.type == "inline"]
    shown = "".join(child.content for child in inline.children or () if child.type != "html_inline")
    assert shown == "x" + " ".join(text.replace("\u202e", " ").split())


@given(st.lists(st.text("`~ab", max_size=8)))
def test_no_line_closes_its_fence(lines: list[str]) -> None:
    (block,) = tokens_of("\n".join(fence("console", lines)))
    assert (block.type, block.content) == ("fence", "".join(f"{line}\n" for line in lines))
