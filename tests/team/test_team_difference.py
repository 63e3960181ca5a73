"""Two digests of a team compared by ability: what is wider, what breaks callers, what is only different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidSettingError
from retinue.oci.codec.manifest import parse_manifest
from retinue.runtime.commands.teams.comparing import compare_content
from retinue.team.change import Change, TeamContent, compare_words
from retinue.team.consent import describe_consent
from retinue.team.definition import parse_definition
from retinue.team.difference import compare_teams, exit_status
from retinue.team.files import TeamFile
from retinue.team.lock import TeamLock
from retinue.team.package import open_team, pack_team
from retinue.team.packages import list_packages
from retinue.team.schema_change import find_breaks

DEFINITION = """
name = "words"
version = "1.0.0"
[[agents]]
target = "agents/word/agent.py"
[[agents]]
target = "prompts/editor.md"
[access.editor]
send = ["word-agent/*"]
[secrets]
KEY = "a key"
"""
PROMPT = "---\nname: editor\ndescription: Edits.\ntools: [count_words]\n---\nYou edit the text with care.\n"
WORKFLOW = "name: edit\nsteps:\n  - id: count\n    skill: count_words\n"
INPUT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def content(
    definition: str = DEFINITION,
    *,
    prompt: str = PROMPT,
    workflow: str = WORKFLOW,
    code: str = "agent = 1\n",
    schema: dict[str, Any] = INPUT,
    output: dict[str, Any] | None = None,
    packages: str = "",
    licences: dict[str, str] | None = None,
    tools: Mapping[str, Sequence[str]] | None = None,
    documents: Mapping[str, bytes] | None = None,
) -> TeamContent:
    files = [
        TeamFile("team.toml", "team", definition.encode()),
        TeamFile("agents/word/agent.py", "agents", code.encode()),
        TeamFile("prompts/editor.md", "prompts", prompt.encode()),
        TeamFile("workflows/edit.yaml", "workflows", workflow.encode()),
    ]
    files += [TeamFile(name, "documents", document) for name, document in (documents or {}).items()]
    path = "agents/word/pylock.toml"
    if packages:
        files.append(TeamFile(path, "agents", packages.encode()))
    skill = {"id": "count_words", "input_schema": schema, "output_schema": output}
    agents = {
        "agents/word/agent.py": {
            **{"name": "word-agent", "skills": [skill]},
            **({"lock": path} if packages else {}),
        },
        "prompts/editor.md": {"name": "editor"},
    }
    parsed = parse_definition(definition.encode())
    imports = {
        key: {"tools": [{"id": tool} for tool in (tools or {}).get(key, ())]} for key in parsed.imports
    }
    lock = TeamLock.model_validate(
        {
            **{"schema": 1, "agents": agents, "imports": imports},
            "licences": {path: licences} if licences else {},
        }
    )
    package = pack_team(parsed, lock, files)
    manifest = parse_manifest(package.manifest_bytes, where="x")
    config = package.blobs[manifest.config.digest]
    team = open_team(manifest, config, digest=package.digest, where="x")
    return TeamContent(team, {file.path: file.content for file in files})


def find(changes: list[Change], area: str) -> list[Change]:
    return [change for change in changes if change.area == area]


def test_equal_digests_have_no_difference() -> None:
    changes = compare_teams(content(), content())
    assert (changes, exit_status(changes)) == ([], 0)


@pytest.mark.parametrize(
    ("old", "new", "area", "text"),
    [
        ('send = ["word-agent/*"]', 'send = ["word-agent/*", "files/*"]', "access", "may call files/*"),
        ('[access.editor]\nsend = ["word-agent/*"]\n', "", "access", "may call everybody: the list is gone"),
        ('KEY = "a key"', 'KEY = "a key"\nMORE = "another"', "secret", "another"),
        (
            'target = "agents/word/agent.py"',
            'target = "agents/word/agent.py"\nenv = { K = "${KEY}" }',
            "secret",
            "agents/word/agent.py gets it, too",
        ),
        ("[secrets]", '[imports.x]\nurl = "https://mcp.example/mcp"\n[secrets]', "host", "is named"),
        ("[secrets]", '[llm.m]\nmodel = "m-1"\n[secrets]', "model", "m-1"),
    ],
)
def test_what_gives_a_team_more_is_wider(old: str, new: str, area: str, text: str) -> None:
    before, after = content(), content(DEFINITION.replace(old, new))
    changes = compare_teams(before, after)
    assert (text, True) in [(change.text, change.is_wider) for change in find(changes, area)]
    assert exit_status(changes) == 3
    assert exit_status(compare_teams(after, before)) == 1


def test_a_raised_budget_of_a_team_is_wider_and_one_without_models_is_refused() -> None:
    model = '[llm.m]\nmodel = "m-1"\n[budget]\nmax_cost_per_day = {}\n[secrets]'
    before, after = (content(DEFINITION.replace("[secrets]", model.format(limit))) for limit in (5.0, 6.0))
    (change,) = find(compare_teams(before, after), "model")
    assert (change.text, change.is_wider) == ("max_cost_per_day 5.0 → 6.0", True)
    assert exit_status(compare_teams(after, before)) == 1
    assert "together: max_cost_per_day 5.0" in "\n".join(describe_consent(before.team, "me").render())
    with pytest.raises(InvalidSettingError, match="it has none"):
        content(DEFINITION.replace("[secrets]", "[budget]\nmax_cost_per_day = 5.0\n[secrets]"))


def test_a_prompt_is_compared_word_by_word_and_new_tools_of_it_are_wider() -> None:
    changes = compare_teams(content(), content(prompt=PROMPT.replace("with care", "at once")))
    (change,) = find(changes, "prompt")
    assert change.details == ("-- You edit the text [-with care-]{+at once+}.",)
    assert exit_status(changes) == 1
    more = compare_teams(
        content(), content(prompt=PROMPT.replace("[count_words]", "[count_words, write_file]"))
    )
    assert ("its model may call write_file", True) in [(c.text, c.is_wider) for c in find(more, "prompt")]


IMPORT = '[imports.files]\nurl = "http://f.example/mcp"\n[secrets]'
MODEL = '[llm.m]\nmodel = "{}"\nmax_cost_per_day = 5.0\n[secrets]'


def a_document(server: str, other: str = "") -> bytes:
    operation: dict[str, Any] = {"operationId": "show", "responses": {"200": {"description": "x"}}}
    more = {"servers": [{"url": other}]} if other else {}
    api = {"openapi": "3.1.0", "info": {"title": "Pets", "version": "1"}, "servers": [{"url": server}]}
    return orjson.dumps({**api, "paths": {"/a": {"get": operation}, "/b": {"get": operation, **more}}})


def test_the_hosts_of_an_api_without_server_are_those_of_its_document() -> None:
    pets = '[imports.pets]\nopenapi = "documents/pets.json"\n{}[secrets]'
    documents = {
        "before": a_document("https://pets.example/v1"),
        "after": a_document("https://pets.example/v1", "https://evil.example/v1"),
        "relative": a_document("/v1"),
    }
    teams = {
        name: content(
            DEFINITION.replace("[secrets]", pets.format("")), documents={"documents/pets.json": document}
        )
        for name, document in documents.items()
    }
    changes = find(compare_teams(teams["before"], teams["after"]), "host")
    assert [(change.name, change.kind, change.is_wider) for change in changes] == [
        ("evil.example", "added", True)
    ]
    after = teams["after"]
    consent = describe_consent(after.team, "me", documents=after.files)
    assert consent.hosts == ("evil.example", "pets.example")
    (change, _) = find(compare_teams(teams["before"], teams["relative"]), "host")
    unknown = "unknown ones of pets, because documents/pets.json cannot be read"
    assert describe_consent(teams["relative"].team, "me", documents=teams["relative"].files).hosts == (
        unknown,
    )
    (_, change) = find(compare_teams(teams["before"], teams["relative"]), "host")
    assert (change.name, change.is_wider) == (unknown, True)
    fixed = DEFINITION.replace("[secrets]", pets.format('server = "https://own.example"\n'))
    one, other = (
        content(fixed, documents={"documents/pets.json": documents[name]}) for name in ("before", "after")
    )
    assert find(compare_teams(one, other), "host") == []


def test_a_new_tool_of_an_import_and_another_model_are_wider() -> None:
    definition = DEFINITION.replace("[secrets]", IMPORT)
    before, after = (
        content(definition, tools={"files": tools}) for tools in (["read"], ["read", "write_file"])
    )
    (change,) = find(compare_teams(before, after), "skill")
    assert (change.name, change.is_wider) == ("files/write_file", True)
    assert exit_status(compare_teams(after, before)) == 1
    one, other = (content(DEFINITION.replace("[secrets]", MODEL.format(name))) for name in ("m-1", "m-2"))
    (change,) = find(compare_teams(one, other), "model")
    assert (change.text, change.is_wider) == ("model m-1 → m-2", True)


THINK = "name: edit\nsteps:\n  - id: think\n    think:\n      prompt: Edit.\n      tools: [count_words]\n"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (THINK, THINK.replace("[count_words]", "[count_words, write_file]"), "may call write_file"),
        (THINK, THINK.replace("      tools: [count_words]\n", ""), "may call any skill that it finds"),
        (THINK, THINK + "      model: other\n", "has a model that is other"),
        (THINK + "      approve: [send]\n", THINK, "its model needs no person for send"),
        (THINK + "      deny: [send]\n", THINK, "its model is no longer denied send"),
        (THINK + "      limits: {calls: 5}\n", THINK, "limits.calls 5 → 60"),
        (WORKFLOW, WORKFLOW + "  - id: more\n    workflow: publish\n", "it runs the workflow publish"),
        (WORKFLOW, WORKFLOW + "  - id: more\n    role: review\n", "it asks the role review"),
        (
            WORKFLOW,
            WORKFLOW + "  - id: more\n    agent: other\n    prompt: Do it.\n",
            "it asks other",
        ),
        (WORKFLOW, WORKFLOW + "    compensate: {skill: forget}\n", "it calls forget"),
        (WORKFLOW, "runs_as: mesh\n" + WORKFLOW, "it runs with the rights of the mesh"),
    ],
)
def test_a_workflow_that_may_do_more_is_wider(before: str, after: str, text: str) -> None:
    changes = compare_teams(content(workflow=before), content(workflow=after))
    wider = [change.text for change in find(changes, "workflow") if change.is_wider]
    assert any(text in shown for shown in wider), wider
    assert exit_status(changes) == 3
    assert exit_status(compare_teams(content(workflow=after), content(workflow=before))) == 1


def test_new_and_changed_variables_are_wider_and_removed_ones_are_not() -> None:
    table = 'target = "agents/word/agent.py"'
    plain = content()
    one, other = (content(DEFINITION.replace(table, f'{table}\nenv = {{ URL = "{v}" }}')) for v in "ab")
    for before, after, text, is_wider in (
        (plain, one, '"a"', True),
        (one, other, '"a" → "b"', True),
        (one, plain, "is gone", False),
    ):
        (change,) = find(compare_teams(before, after), "env")
        assert (change.name, change.text, change.is_wider) == ("word-agent URL", text, is_wider)


def test_a_workflow_that_cannot_be_read_is_wider() -> None:
    (change, _) = compare_teams(content(), content(workflow="steps: 3\n"))
    assert (change.text, change.is_wider) == ("what it calls cannot be read", True)


PYLOCK = """
[[packages]]
name = "a"
version = "1.0"
wheels = [{{ url = "https://files.example/a.whl", hashes = {{ sha256 = "{}" }} }}]
"""


def test_a_package_with_another_hash_differs() -> None:
    before, after = (content(packages=PYLOCK.format(letter * 64)) for letter in "ab")
    (change,) = find(compare_teams(before, after), "packages")
    assert change.details == ("~ a 1.0: its files have other hashes or addresses",)
    rows = [{"version": "1.0", "resolved": "https://x", "integrity": f"sha512-{n}"} for n in (1, 2)]
    locks = [orjson.dumps({"packages": {"node_modules/a": row}}) for row in rows]
    assert list_packages("x.json", locks[0]) != list_packages("x.json", locks[1])


def test_all_versions_of_a_package_in_one_lock_count() -> None:
    rows = {"node_modules/a": {"version": "1.0"}, "node_modules/b/node_modules/a": {"version": "2.0"}}
    assert list_packages("x.json", orjson.dumps({"packages": rows}))["a"].version == "1.0, 2.0"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('KEY = "a key"', 'KEY = "b key"', "a key → b key"),
        ("[secrets]", "[rollout]\nsteps = [100]\n[secrets]", "steps [5, 25, 100] → [100]"),
        ("[secrets]", "# a comment\n[secrets]", "337 → 349 bytes"),
    ],
)
def test_digests_that_differ_are_never_the_same(old: str, new: str, text: str) -> None:
    changes = compare_content(content(), content(DEFINITION.replace(old, new)))
    assert exit_status(changes) == 1
    assert any(text in change.text for change in changes), changes


def test_digests_with_equal_files_of_equal_sizes_are_told_by_name() -> None:
    same = (
        DEFINITION.replace("[secrets]", "# one\n[secrets]"),
        DEFINITION.replace("[secrets]", "# two\n[secrets]"),
    )
    (change,) = compare_content(content(same[0]), content(same[1]))
    assert change.render() == ["~ files of the digest: team.toml differ"]
    team = content().team
    other = TeamContent(replace(team, digest="sha256:" + "1" * 64), content().files)
    (change,) = compare_content(content(), other)
    assert (change.text, exit_status([change])) == ("the lock, or the manifest, differs", 1)


def test_a_workflow_is_compared_by_step_and_a_new_call_is_wider() -> None:
    same_calls = WORKFLOW.replace("skill: count_words", "skill: count_words\n    with: {text: a}")
    changes = compare_teams(content(), content(workflow=same_calls))
    assert [change.text for change in find(changes, "workflow")] == ["the step count changes with"]
    assert exit_status(changes) == 1
    more = compare_teams(content(), content(workflow=WORKFLOW + "  - id: send\n    skill: send_mail\n"))
    assert [(c.text, c.is_wider) for c in find(more, "workflow")] == [
        ("the step send is new", False),
        ("it calls send_mail", True),
    ]


def test_code_alone_is_different_and_told_by_its_lines() -> None:
    changes = compare_teams(content(), content(code="agent = 2\nmore = 1\n"))
    assert [change.render()[0] for change in changes] == [
        "~ code agents/word/agent.py: +2 -1 lines",
        "~ team size: 337 → 346 bytes",
    ]
    assert exit_status(changes) == 1


def test_packages_are_compared_with_their_licences() -> None:
    packages = '[[packages]]\nname = "a"\nversion = "1.0"\n'
    old = content(packages=packages, licences={"a": "MIT"})
    new = content(packages=packages, licences={"a": "AGPL-3.0-only"})
    (change,) = find(compare_teams(old, new), "packages")
    assert change.details == ("~ a 1.0 (MIT) → 1.0 (AGPL-3.0-only)",)


def test_a_skill_whose_callers_must_change_is_breaking() -> None:
    required = {**INPUT, "properties": {**INPUT["properties"], "mood": {}}, "required": ["text", "mood"]}
    (change,) = find(compare_teams(content(), content(schema=required)), "skill")
    assert (change.is_breaking, change.details) == (True, ("input.mood is required now",))
    (change,) = find(compare_teams(content(schema=required), content()), "skill")
    assert not change.is_breaking


TEXT: dict[str, Any] = {"type": "string"}
OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}


@pytest.mark.parametrize(
    ("old", "new", "breaks_input", "breaks_output"),
    [
        (TEXT, {**TEXT, "description": "x"}, False, False),
        ({"type": "integer"}, {"type": "number"}, False, True),
        (TEXT, {"type": ["string", "null"]}, False, True),
        ({**TEXT, "enum": ["a", "b"]}, {**TEXT, "enum": ["a"]}, True, False),
        (TEXT, {**TEXT, "maxLength": 3}, True, False),
        ({"minimum": 1}, {"minimum": 0}, False, True),
        (OBJECT, {**OBJECT, "required": []}, False, True),
        (OBJECT, {**OBJECT, "properties": {"a": TEXT, "b": TEXT}}, False, False),
        (OBJECT, {**OBJECT, "additionalProperties": False}, True, False),
        ({"type": "array", "items": TEXT}, {"type": "array", "items": {"type": "integer"}}, True, True),
        (TEXT, {**TEXT, "pattern": "a+"}, True, True),
        (None, TEXT, True, False),
        ({"$ref": "#/a"}, {"$ref": "#/b"}, True, True),
    ],
)
def test_schemas_break_who_sends_or_who_reads(
    old: dict[str, Any] | None, new: dict[str, Any] | None, breaks_input: bool, breaks_output: bool
) -> None:
    assert bool(find_breaks(old, new, is_input=True)) == breaks_input
    assert bool(find_breaks(old, new, is_input=False)) == breaks_output


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "enum", "properties"]), inner)
    ),
    max_leaves=8,
)


@given(JSON, JSON, st.booleans())
def test_no_schema_of_a_stranger_ends_the_comparison(old: Any, new: Any, is_input: bool) -> None:
    find_breaks({"properties": {"a": old}}, {"properties": {"a": new}}, is_input=is_input)


def test_long_texts_are_counted_instead_of_compared() -> None:
    assert compare_words("a " * 20_000, "b " * 20_000) == ["20,000 → 20,000 words"]
