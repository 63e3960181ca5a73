"""The format of agents in Markdown: keys as coding agents have them, and those below ``retinue``."""

from __future__ import annotations

import json
import string
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import DefinitionError
from retinue.markdown.definition import MarkdownAgent, parse_agent


def read(front: str, body: str = "Work.") -> MarkdownAgent:
    return parse_agent(f"---\n{front}\n---\n{body}\n", "a.md", name="file")


def test_a_file_for_a_coding_agent_is_an_agent() -> None:
    agent = read(
        "name: reviewer\n"
        "description: Use this agent when code changed. Examples: user: 'look at this' -> review\n"
        "tools: Read, Bash(git diff:*, git log:*), mcp__github__get_pull, mcp__files, files/read_*\n"
        "disallowedTools: [files/read_secret, Write]\n"
        "model: sonnet\n"
        "maxTurns: 5\n"
        "color: blue\n"
    )
    assert (agent.name, agent.skill, agent.exposes) == ("reviewer", "reviewer", False)
    assert agent.description.endswith("-> review")
    assert agent.think.tools == ("github/get_pull", "files/*", "files/read_*")
    assert agent.think.deny == ("files/read_secret",)
    assert (agent.think.model, agent.think.limits.turns) == ("claude", 5)
    assert list(agent.warnings) == [
        "a.md:8: color: Retinue does not use this key",
        "a.md:4: tools: Read is a tool of another program, which no skill replaces",
        "a.md:4: tools: Bash(git diff:*, git log:*) is a tool of another program, which no skill replaces",
        "a.md:5: disallowedTools: Write is a tool of another program, which no skill replaces",
    ]


@pytest.mark.parametrize(
    ("tools", "skills"),
    [
        ("name: x", ("search",)),
        ("tools:", ("search",)),
        ("tools: []", ()),
        ("tools: Read, Write", ()),
        ("tools: [search, 'files/*']", ("search", "files/*")),
        ("tools: {count: true, write: false}", ("count",)),
    ],
)
def test_tools_are_search_or_those_that_are_named(tools: str, skills: tuple[str, ...]) -> None:
    agent = read(tools)
    assert agent.think.tools == skills
    assert any("the agent has no tools" in warning for warning in agent.warnings) is (not skills)


@pytest.mark.parametrize(
    ("tools", "denied"),
    [
        ("search", ["write_*", "helper/ask"]),
        ("'*'", ["write_*", "helper/ask"]),
        ("ask", ["write_*"]),
        ("helper/ask", ["write_*"]),
    ],
)
def test_an_agent_calls_itself_only_where_its_tools_name_it(tools: str, denied: list[str]) -> None:
    agent = read(f"name: helper\ntools: [{tools}]\nretinue: {{skill: ask, deny: 'write_*'}}")
    assert agent.workflow["steps"][0]["think"]["deny"] == denied


@pytest.mark.parametrize(
    ("model", "agent"),
    [
        ("inherit", None),
        ("opus", "claude"),
        ("claude-sonnet-4-5", "claude"),
        ("anthropic/claude-opus", "claude"),
        ("gemini-2.5-pro", "gemini"),
        ("gpt-5", "openai"),
        ("o3", "openai"),
        ("our-model", "our-model"),
    ],
)
def test_a_name_of_a_model_means_the_model_agent_of_its_vendor(model: str, agent: str | None) -> None:
    assert read(f"model: {model}").think.model == agent


@pytest.mark.parametrize("key", ["maxTurns", "max_turns", "steps"])
def test_turns_have_the_names_of_other_programs(key: str) -> None:
    assert read(f"{key}: 7\nretinue: {{limits: {{calls: 3}}}}").think.limits.turns == 7
    assert read(f"{key}: 7\nretinue: {{limits: {{turns: 3}}}}").think.limits.turns == 3


def test_keys_below_retinue_are_those_of_the_step_think() -> None:
    agent = read(
        "retinue:\n  skill: ask\n  expose: true\n  deny: '*/*delete*'\n  approve: [files/write]\n"
        "  parallel: 2\n  limits: {dollars: 0.5, time: 2m}\n  output: {type: object}\n  examples: [What?]"
    )
    assert (agent.name, agent.skill, agent.exposes, agent.examples) == (
        "file",
        "ask",
        True,
        ("What?",),
    )
    assert (agent.think.deny, agent.think.approve) == (("*/*delete*",), ("files/write",))
    assert (agent.think.limits.dollars, agent.think.limits.time_s, agent.think.parallel) == (0.5, 120.0, 2)
    assert agent.output == {"type": "object"}
    assert agent.warnings == ()


@pytest.mark.parametrize(
    ("front", "message", "remedy"),
    [
        ("name: x\nretinue:\n  limit: 3", "a.md:4: retinue.limit: unknown key", "did you mean limits?"),
        ("retinue: {session: maybe}", "a.md:2: retinue.session: it is a string", "write true or false"),
        (
            "retinue:\n  limits: {turn: 3}",
            "a.md:3: retinue.limits.turn: unknown key 'turn'",
            "did you mean turns?",
        ),
        (
            "name: x\nmaxTurns: 0",
            "a.md:3: maxTurns: it must be greater than or equal to 1; it is 0",
            "retinue docs agents-in-markdown shows the form",
        ),
        (
            "retinue:\n  limits: {dollars: '1'}",
            "a.md:3: retinue.limits.dollars: it must be a",
            "shows the form",
        ),
        (
            "retinue:\n  context: {keep: 1}",
            "a.md:3: retinue.context.keep: unknown key 'keep'",
            "keep_results",
        ),
        ("retinue: {approve: {a: b}}", "a.md:2: retinue.approve: it must be a list; it is an object", ""),
        ("name: two words", "a.md:2: name: 'two words' is no name", "use letters"),
        ("name: [x]", "a.md:2: name: it is", "write a text"),
        ("retinue: {expose: 1}", "a.md:2: retinue.expose: it is", "write true or false"),
        (
            "retinue: {input: {type: string}}",
            "a.md:2: retinue.input: it is an object, no JSON Schema of an object",
            "",
        ),
        ("name: x\n  y: 1", "a.md:", "mend the YAML"),
        (
            "name: x\nretinue:\n  output: {type: object, properties: 5}",
            "a.md:4: retinue.output: schema of output refused: at properties",
            "simplify",
        ),
        ("retinue: {input: {properties: {a: 5}}}", "a.md:2: retinue.input: schema of input refused", ""),
        # what is denied must not be left out in silence
        ("disallowedTools: {write_file: 1}", "a.md:2: disallowedTools.write_file: it is a number", "true"),
        ('description: "\\ud800"', "a.md:", "write plain values"),
        ("- a", "a.md:2: the front matter is", "write keys"),
    ],
)
def test_a_fault_names_its_line_and_the_remedy(front: str, message: str, remedy: str) -> None:
    with pytest.raises(DefinitionError) as error:
        read(front)
    assert error.value.message.startswith(message)
    assert remedy in (error.value.remedy or "")


@pytest.mark.parametrize("text", ["# A page\n", "---\nname: x\n", "---\nname: x\n---\n"])
def test_a_page_without_front_matter_or_instructions_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError):
        parse_agent(text, "a.md")


def test_the_text_of_the_file_is_no_template() -> None:
    body = "Write ${{ x }} and $${{ y }}."
    options = read("name: x", body).workflow["steps"][0]["think"]
    assert options["instructions"] == "Write $${{ x }} and $$${{ y }}."


def test_an_input_of_several_fields_is_the_prompt_as_data() -> None:
    agent = read("name: x")
    assert agent.write_prompt({"prompt": "Do it"}) == "Do it"
    assert '"topic": "tea"' in agent.write_prompt({"topic": "tea"})
    assert agent.write_prompt({"prompt": "Rate", "topic": "tea"}).startswith("Rate\n\n[begin of the input")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(string.printable, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["name", "description", "tools", "disallowedTools", "model", "maxTurns", "steps", "color"]
OWN = ["skill", "input", "output", "limits", "deny", "approve", "parallel", "examples", "expose"]


@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES),
    st.dictionaries(st.sampled_from(OWN), VALUES) | VALUES,
    st.text(max_size=20),
)
def test_any_front_matter_is_an_agent_or_a_typed_error(keys: dict[str, Any], own: Any, body: str) -> None:
    front = "\n".join(f"{key}: {json.dumps(value)}" for key, value in {**keys, "retinue": own}.items())
    _read_any(f"---\n{front}\n---\n{body}")


@given(st.text(max_size=200) | st.text("-:\n [{'\"&*!|>a", max_size=60).map("---\n{}\n---\nx".format))
def test_any_text_is_an_agent_or_a_typed_error(text: str) -> None:
    _read_any(text)


def _read_any(text: str) -> None:
    try:
        agent = parse_agent(text, "a.md", name="file")
    except DefinitionError:
        return
    assert agent.workflow["name"] == agent.name


def test_the_template_of_a_new_agent_has_no_warnings() -> None:
    template = resources.files("retinue.cli.serving").joinpath("templates", "think", "agent.md.txt")
    agent = parse_agent(template.read_text("utf-8"), "my-agent.md")
    assert (agent.name, agent.exposes, agent.think.tools, agent.warnings) == (
        "my-agent",
        True,
        ("search",),
        (),
    )
