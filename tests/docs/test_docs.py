"""The pages are true: examples run or parse, tables hold what the code holds, links lead somewhere."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, get_args, get_origin

import orjson
import pyjson5
import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from ruamel.yaml import YAML
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

import retinue
from retinue import Agent
from retinue.cli.failures import describe, show
from retinue.core import json_values
from retinue.core.call import Status
from retinue.core.errors import SkillNotOfferedError
from retinue.core.record import Visibility
from retinue.mesh.observing.metrics import METRICS
from retinue.mesh.schema import checks as schema
from retinue.mesh.schema import cost as schema_cost
from retinue.policies.policy_set import load_policies
from retinue.rpc import server as execute
from retinue.settings import Settings, load_settings, settings_class
from retinue.team.definition import read_definition
from retinue.web.codec import jsonrpc
from retinue.web.connection_gate import MIN_PROGRESS_BYTES
from retinue.web.error_table import execute_fault, list_error_classes
from retinue.web.transport import MAX_RESPONSE_BYTES
from retinue.workflows.definitions import step_checks
from retinue.workflows.definitions.loading import load_definition
from scripts import error_tables, python_reference
from tests.docs.pages import DECISIONS, GUIDES, PAGES, README, REPORTS, ROOT, list_sections, table_rows
from tests.requirements import requirement

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "retinue"


def _parse_json(example: Example) -> None:
    orjson.loads(str(example.parsed))


def _parse_commented_json(example: Example) -> None:
    pyjson5.decode(example.parsed)


def _parse_toml(example: Example) -> None:
    document = tomllib.loads(example.parsed)
    if "version" in document:
        read_definition(document, where="team.toml")
    else:
        Settings.model_validate(document)


def _load_yaml(example: Example) -> None:
    value = YAML(typ="safe").load(example.parsed)
    if isinstance(value, dict) and "steps" in value:
        load_definition(example.parsed, source=example.path)


def _load_policies(example: Example) -> None:
    load_policies({example.path: example.parsed})


SYBIL = Sybil(
    parsers=[
        PythonCodeBlockParser(),
        CodeBlockParser("json", _parse_json),
        CodeBlockParser("jsonc", _parse_commented_json),
        CodeBlockParser("toml", _parse_toml),
        CodeBlockParser("yaml", _load_yaml),
        CodeBlockParser("cedar", _load_policies),
    ]
)
# the programs of one page run in environments of their own (sessions/test_agent_frameworks)
ELSEWHERE = DOCS / "guides" / "agent-frameworks.md"
DOCUMENTS: dict[Path, Document] = {page: SYBIL.parse(page) for page in GUIDES if page != ELSEWHERE}
EXAMPLES = [
    pytest.param(example, id=f"{page.name}:{example.line}")
    for page, document in DOCUMENTS.items()
    for example in document.examples()
]


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs_or_parses(example: Example) -> None:
    example.evaluate()


def test_every_language_of_a_fence_is_one_that_is_checked() -> None:
    # scripts are run by the session of their page, and agents in Markdown are loaded by its test
    checked = {"python", "json", "jsonc", "toml", "yaml", "sh", "markdown", "cedar"}
    shown = {"console", "text"}
    fences = {name for page in PAGES for name in re.findall(r"^```(\S+)$", page.read_text("utf-8"), re.M)}
    assert fences <= checked | shown


@requirement("W-24")
def test_the_guide_to_messages_says_that_tls_encrypts_them_and_where_it_ends() -> None:
    section = read("guides/messages.md").partition("## Encryption")[2]
    assert "TLS encrypts messages" in section
    assert "operating.md#addresses-and-proxies" in section


async def test_the_agent_of_the_readme_counts_words() -> None:
    document = SYBIL.parse(README)
    for example in document.examples():
        example.evaluate()
    agent = document.namespace["agent"]
    assert isinstance(agent, Agent)
    assert await agent.call("count_words", {"text": "one two three"}) == 3


# Settings


def list_leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Dotted name, environment name and default of every setting; a default of ``...`` is required."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        table = _find_table(field.annotation)
        if table is None:
            default = ... if field.default is PydanticUndefined else field.default
            yield path, _environment_name(path), default
        else:
            # a table, a list of tables, or a table for each name
            among = {None: "", tuple: "[]"}.get(get_origin(field.annotation), ".NAME")
            yield from list_leaves(table, f"{path}{among}.")


def _find_table(annotation: Any) -> type[BaseModel] | None:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _environment_name(path: str) -> str:
    # a list of tables is one variable, with JSON
    return "RETINUE_" + path.partition("[]")[0].replace(".", "__").upper()


def test_every_setting_is_documented_with_its_default_and_its_name_in_the_environment() -> None:
    documented = {
        name.strip("`"): (variable.strip("`"), default.strip("`"))
        for name, variable, default, _ in table_rows(read("settings.md"), "setting")
    }
    real = {
        path: (variable, "required" if default is ... else orjson.dumps(default).decode())
        for path, variable, default in list_leaves(settings_class())
    }
    assert documented == real


def test_the_environment_example_of_the_settings_page_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ((command,),) = [commands for part in list_sections(DOCS / "settings.md") for commands in part.commands()]
    for assignment in shlex.split(command):
        name, equals, value = assignment.partition("=")
        if equals:
            monkeypatch.setenv(name, value)
    settings = load_settings(start=Path("/"))
    assert (settings.hub.port, settings.registries) == (9100, ("http://127.0.0.1:5000",))


def test_the_variables_beside_the_settings_are_those_that_the_code_reads() -> None:
    documented = {row[0].strip("`") for row in table_rows(read("settings.md"), "environment")}
    source = "".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    named = set(re.findall(r'"(RETINUE_[A-Z]+(?:_[A-Z]+)*)"', source))
    # these are between a supervisor and its child, and nobody else's
    between = {"RETINUE_SUPERVISOR_FD", "RETINUE_LISTENER_FD", "RETINUE_HUB_PLACE", "RETINUE_TEAM"}
    between.add("RETINUE_TEAM_BUDGET")
    assert documented == named - between


# Errors


def test_the_tables_of_the_errors_page_are_those_of_the_code() -> None:
    page = read("errors.md")
    assert error_tables.render_page(page) == page, "run: python -m scripts.error_tables"


def test_the_python_reference_is_what_the_docstrings_say() -> None:
    assert read("python.md") == python_reference.render_page(), "run: python -m scripts.python_reference"


def test_the_python_reference_has_every_public_name() -> None:
    page = read("python.md")
    assert [
        name for name in retinue.__all__ if f"### {name}\n" not in page and f"| `{name}` |" not in page
    ] == []


def test_every_type_of_error_has_a_row() -> None:
    types = [row[0].strip("`") for row in table_rows(read("errors.md"), "type")]
    assert set(types) == {kind.type for kind in list_error_classes()}
    # once with its meaning, once with its forms
    assert all(types.count(name) == 2 for name in types)


def test_the_script_writes_the_tables_and_says_when_they_are_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "errors.md"
    page.write_text(f"before\n{error_tables.BEGIN}\nold\n{error_tables.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(error_tables, "PAGE", page)
    assert error_tables.main(["--check"]) == 1
    assert error_tables.main([]) == 0
    assert error_tables.main(["--check"]) == 0
    written = page.read_text(encoding="utf-8")
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "`recursion_limit`" in written


def test_the_example_of_the_errors_page_is_what_a_caller_gets(capsys: pytest.CaptureFixture[str]) -> None:
    error = SkillNotOfferedError("gret", near=("greet",))
    intro = list_sections(DOCS / "errors.md")[0]
    shown = orjson.loads(intro.blocks("json")[0])["error"]
    code, message, data = execute_fault(error)
    assert shown == {"code": code, "message": message, "data": data}
    show(describe(error))
    assert capsys.readouterr().err in intro.blocks("console")[0]


# Security


def test_the_limits_on_the_security_page_are_the_real_ones() -> None:
    rows = {row[0]: row[1] for row in table_rows(read("security.md"), "what")}
    settings = Settings()
    mebibytes = settings.limits.body_bytes // 1024**2
    assert f"{mebibytes} MiB" in rows["a request"]
    assert f"{json_values.MAX_DEPTH} levels" in rows["a request"]
    assert f"batches of {jsonrpc.MAX_BATCH:,} of which {execute.MAX_AT_ONCE} run" in rows["a request"]
    limits = settings.limits
    assert rows["url and headers of a request"].startswith(
        f"{limits.head_bytes // 1024} KiB, {limits.headers} headers"
    )
    assert rows["time of a request that is not complete"].startswith(
        f"{limits.head_s:g} s for the headers, then {MIN_PROGRESS_BYTES // 1024} KiB of body each "
        f"{limits.body_s:g} s"
    )
    assert rows["open connections of one process"].startswith(f"{limits.connections:,},")
    held = rows["bodies of unanswered requests together"]
    assert held.startswith(f"{limits.held_bytes // 1024**2} MiB")
    assert f"{settings.limits.in_flight:,}" in rows["calls in flight in one process"]
    assert settings.limits.calls_per_s is None
    assert f"{settings.trace.max_depth} hops, {settings.trace.calls:,} calls" in rows["a chain of calls"]
    times = f"{settings.timeouts.door_s:g} s at an endpoint, {settings.timeouts.agent_call_s:g} s from skill"
    assert times in rows["time of a call"]
    sizes = f"{schema.MAX_SCHEMA_BYTES // 1024} KiB, {schema_cost.MAX_DEPTH} levels"
    assert f"{sizes}, {schema_cost.MAX_REFS_AND_BRANCHES:,} references" in rows["a skill's schema"]
    assert rows["a response that is read"] == f"{MAX_RESPONSE_BYTES // 1024**2} MiB"
    assert f"{step_checks.MAX_STEPS:,} steps" in rows["a workflow"]


# Architecture


def test_every_file_that_a_page_names_exists() -> None:
    named = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(
            r"(?<!Save this as )`((?:\w+/)+\w+\.(?:py|txt|yaml|toml))`", page.read_text("utf-8")
        )
    }
    assert len(named) > 30
    folders = (SOURCE, ROOT, *(ROOT / "packages").glob("*/src"))
    missing = [
        (page, path) for page, path in named if not any((folder / path).is_file() for folder in folders)
    ]
    assert missing == []


def test_every_port_on_the_architecture_page_is_one_and_has_the_implementations_named_there() -> None:
    rows = table_rows(read("architecture.md"), "port")
    assert len(rows) >= 10
    for name, declared_in, _, implementations in rows:
        port = _find(name.strip("`"), declared_in.strip("`"))
        assert Protocol in port.__mro__, name
        for implementation, file in re.findall(r"`(\w+)` in `([\w/]+\.py)`", implementations):
            members = {member for member in vars(port) if not member.startswith("_")}
            assert members <= set(dir(_find(implementation, file))) | _attributes(file), (
                name,
                implementation,
            )


def test_the_architecture_page_names_every_port() -> None:
    found = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(
            r"^class (\w+)\((?:.*\W)?(?<!asyncio\.)Protocol\b", path.read_text("utf-8"), re.MULTILINE
        )
    }
    assert found == {row[0].strip("`") for row in table_rows(read("architecture.md"), "port")}


def _module_of(file: str) -> str:
    """The module of a file that is named below ``src/retinue``, or by the package of another distribution."""
    module = file.removesuffix(".py").replace("/", ".")
    return module if module.startswith("retinue_") else f"retinue.{module}"


def _find(name: str, file: str) -> type[Any]:
    found = getattr(importlib.import_module(_module_of(file)), name)
    assert isinstance(found, type), name
    return found


def _attributes(file: str) -> set[str]:
    """What the classes of a file set on themselves."""
    source = inspect.getsource(importlib.import_module(_module_of(file)))
    return set(re.findall(r"self\.(\w+)\b.* = ", source))


def test_every_room_is_in_the_picture() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    picture = list_sections(DOCS / "architecture.md")[1].blocks("text")[0]
    assert rooms | {"settings"} <= set(re.findall(r"│ ([a-z0-9]+) ", picture))


# Words


def test_the_words_that_callers_see_are_in_the_glossary() -> None:
    glossary = read("glossary.md")
    for word in (*get_args(Visibility), *(status.replace("_", " ") for status in get_args(Status))):
        assert word in glossary, word


OUTDATED = (
    r"\b(?:not )?in this version\b(?! range)",
    r"\bwhen (?:the|these|those|this|that) \w+ comes?\b(?! to| back| from| in\b)",
    r"\b(?:is|are) not (?:yet )?implemented\b",
    r"\b(?:not yet|for now|until a later version)\b",
)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_no_page_speaks_of_the_version_that_it_was_written_for(page: Path) -> None:
    """Such a sentence is wrong as soon as what it waits for has come, and nobody finds it."""
    text = page.read_text(encoding="utf-8")
    assert [found for pattern in OUTDATED for found in re.findall(pattern, text, re.IGNORECASE)] == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Agents cannot be called over MCP in this version.",
        "**Not in this version:** A2A.",
        "They are used when those doors come.",
        "The form of A2A is defined; this endpoint is not implemented.",
        "Signatures are not yet checked.",
    ],
)
def test_the_sentences_that_went_out_of_date_would_be_found(sentence: str) -> None:
    assert any(re.search(pattern, sentence, re.IGNORECASE) for pattern in OUTDATED)


# Decisions and links


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem[:4])
def test_every_decision_has_its_number_a_status_and_fits_on_a_screen(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    number = page.name[:4]
    assert text.startswith(f"# {number}: ")
    assert re.search(r"^Status: (accepted|proposed|replaced by \d{4})", text, re.MULTILINE)
    assert len(text.splitlines()) <= 40


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("page", [*PAGES, *REPORTS], ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        assert place.exists(), target
        if heading:
            assert heading in _anchors(place), target


def _anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_metric_is_documented_with_its_kind_and_labels() -> None:
    documented = {
        name.strip("`"): (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in table_rows(read("operating.md"), "metric")
    }
    assert documented == {name: (one.kind, one.labels, one.help) for name, one in METRICS.items()}
