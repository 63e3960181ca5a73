"""The guides are sessions: their files are written, their commands typed, and the answers are those shown.

A file follows a line that ends in ``as `NAME`:``. The JSON that a command prints follows a line ``Output:``;
"…" matches any value there. Lines that a command prints follow a line that begins with ``It prints``, which
may name its exit status; "…" matches the rest of a word or line there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.web.error_table import TABLE
from tests.docs.pages import ROOT, table_rows
from tests.docs.shell import REGISTRY, Shell
from tests.requirements import requirement
from tests.services import docker_registry

KEY_OF_THE_STORY = b"mail-key-of-the-story"

_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"as `([\w./-]+)`:$")
_COMMAND = re.compile(r"^\$ ((?:\\\n|[^\n']|'[^']*')+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block and the line above it."""

    intro: str
    language: str
    text: str


def list_blocks(name: str) -> list[Block]:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return [
        Block(text[: found.start()].rstrip().rpartition("\n")[2], *found.group("language", "text"))
        for found in _BLOCK.finditer(text)
    ]


def list_commands(text: str) -> Iterator[str]:
    """The commands of a block; one goes on behind a backslash and within quotes."""
    for found in _COMMAND.findall(text):
        yield re.sub(r"\\\n\s*", "", found).partition("  #")[0].rstrip()


def play(name: str, shell: Shell) -> int:
    """Go through a page from top to bottom; gives how many answers were compared."""
    compared, said, command = 0, "", ""
    for block in list_blocks(name):
        if file := _FILE.search(block.intro):
            Path(file[1]).write_text(shell.to_real(block.text), encoding="utf-8")
        elif block.language == "console":
            assert len(list(list_commands(block.text))) == block.text.count("$ "), block.text
            for command in list_commands(block.text):
                said = shell.type(command)
        elif block.intro == "Output:":
            while "QUERY_REF" in command and "TASK_ACCEPT" in said:  # the task that it asks for still runs
                said = shell.type(command)
            answer = orjson.loads(shell.to_shown(said))
            assert fill(orjson.loads(block.text), answer) == answer
            compared += 1
    return compared


_STATUS = re.compile(r"It prints.* exit status (\d)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{8}…")
_STAGE = re.compile(r"\d+\.\d+\.\d+: ")
"""A stage of a rollout, which a command that looks ten times a second may miss on a busy machine."""


def tell(name: str, shell: Shell) -> int:
    """Go through a page whose commands print lines; gives how many lines were compared.

    A digest that is a line by itself is that of the commands that follow.
    """
    compared, lines = 0, [""]
    blocks = list_blocks(name)
    for block, following in zip(blocks, [*blocks[1:], Block("", "", "")], strict=True):
        if file := _FILE.search(block.intro):
            Path(file[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            *before, last = list_commands(block.text)
            if not last.startswith(("retinue call", "retinue run ")):
                shell.finish("record-team")
            for command in before:
                shell.type(command)
            found = _STATUS.match(following.intro)
            output = shell.type(last, status=int(found[1]) if found else 0)
            lines = f"{output}\n{shell.said}".splitlines()
        elif block.intro.startswith("It prints"):
            for shown in block.text.splitlines():
                if _DIGEST.fullmatch(shown):
                    shell.addresses[shown] = lines[0]
                pattern = re.compile(re.escape(shown.rstrip()).replace("…", ".*"))
                real = [shell.to_shown(line.rstrip()) for line in lines]
                places = [number for number, line in enumerate(real) if pattern.fullmatch(line)]
                if _STAGE.match(shown):
                    lines = lines[places[0] + 1 :] if places else lines
                    continue
                assert places, f"{shown!r} is not in {lines}"
                lines = lines[places[0] + 1 :]
                compared += 1
    return compared


def fill(shown: Any, real: Any) -> Any:
    """What a page shows, with each "…" replaced by what is really there, and agents in their real order."""
    if shown == "…":
        return real
    if isinstance(shown, dict) and isinstance(real, dict):
        if "agents" in shown and sorted(map(str, shown["agents"])) == sorted(
            map(str, real.get("agents", ()))
        ):
            # those that ran beside each other come in the order of their measured times
            shown = {**shown, "agents": real["agents"]}
        return {key: fill(value, real.get(key)) for key, value in shown.items()}
    if isinstance(shown, list) and isinstance(real, list) and len(shown) == len(real):
        return [fill(*pair) for pair in zip(shown, real, strict=True)]
    return shown


@requirement("P-28")
def test_the_protocols_are_what_the_endpoints_speak(shell: Shell) -> None:
    assert play("protocols.md", shell) == 10


def test_the_protocols_page_names_every_code_and_no_header_that_nobody_reads() -> None:
    text = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    codes = {int(code) for row in table_rows(text, "code") for code in re.findall(r"-\d+", row[0])}
    assert codes == {row.code for row in TABLE.values()}
    headers = {name for row in table_rows(text, "header") for name in re.findall(r"`([\w-]+)[:`]", row[0])}
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert len(headers) == 11
    assert {name for name in headers if f'"{name.lower()}"' not in source} == set()


@requirement("P-28")
def test_registries_are_read_and_agents_found_as_the_page_says(shell: Shell, tmp_path: Path) -> None:
    with docker_registry(tmp_path) as url:
        shell.map_address(REGISTRY, url)
        assert play("guides/registry-and-discovery.md", shell) == 1
    assert Path("my_agent_card.json").read_bytes() == Path("card.json").read_bytes()


def test_the_registry_returns_what_its_reference_shows(shell: Shell) -> None:
    assert play("registry.md", shell) == 4


@requirement("P-28")
def test_the_patterns_run_as_shown(shell: Shell) -> None:
    assert play("guides/orchestration-patterns.md", shell) == 5


def test_the_guide_to_workflows_runs_as_shown(shell: Shell) -> None:
    assert play("guides/running-workflows.md", shell) == 3


def test_the_guide_to_backups_runs_as_shown(shell: Shell) -> None:
    assert play("guides/backup.md", shell) == 0


def test_the_guide_to_teams_runs_as_shown(shell: Shell) -> None:
    folder = Path("elsewhere")
    folder.mkdir()
    with chdir(folder):
        shell.type("retinue new --team editorial")
        shell.type("retinue lock editorial")
        digest = shell.type("retinue pack editorial").strip()
    shell.addresses["sha256:546f32df…"] = digest
    # the digest of the page's team is that of this one, because both have the same content
    assert play("guides/teams.md", shell) == 1


def list_files(folder: Path) -> list[Path]:
    """The files below a folder in which programs work."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]


def read(path: Path) -> bytes:
    """The bytes of a file; none of one that is gone, or no plain file."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return b""


def test_the_story_of_a_team_prints_what_the_page_shows(shell: Shell) -> None:
    assert tell("guides/team-story.md", shell) == 44
    holding = [path for path in list_files(Path(os.environ["HOME"])) if KEY_OF_THE_STORY in read(path)]
    assert all(path.name.startswith("secrets-") and path.stat().st_mode & 0o77 == 0 for path in holding)


def test_the_guide_to_mcp_agents_runs_as_shown(shell: Shell) -> None:
    assert play("guides/mcp-agents.md", shell) == 2


@requirement("P-21")
def test_the_guide_for_other_languages_runs_as_shown(shell: Shell) -> None:
    assert play("guides/other-languages.md", shell) == 3


@requirement("P-28")
def test_the_guide_for_llm_agents_runs_as_shown(shell: Shell) -> None:
    assert play("guides/llm-guide.md", shell) == 2


@requirement("W-18")
def test_the_guide_to_asking_runs_as_shown(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HUB__BARE", "true")
    assert play("guides/asking.md", shell) == 1
    assert "return 2" in shell.type("""retinue call delegate '{"code": "retrun 2"}'""")


@requirement("W-23")
def test_the_guide_to_characters_runs_as_shown(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HUB__BARE", "true")
    assert play("guides/characters.md", shell) == 0
    assert "return 1" in shell.type("""retinue call REPAIR_CODE '{"code": "retrun 1"}'""")


@requirement("W-20")
def test_the_guide_to_messages_runs_as_shown(shell: Shell) -> None:
    assert play("guides/messages.md", shell) == 2
    question = """curl -s http://127.0.0.1:8001/messages -H 'Content-Type: application/json' \
        -d '{"performative": "QUERY_REF", "payload": {"reference": "job-7"}}'"""
    assert orjson.loads(shell.type(question))["payload"]["result_details"] == {"result": "return 2"}


@requirement("L-34")
def test_the_guide_to_orchestration_runs_as_shown(shell: Shell) -> None:
    """A vote of three scripted models among others."""
    assert play("guides/orchestration.md", shell) == 4


@requirement("K-29")
def test_the_guide_to_koi_networks_runs_as_shown(shell: Shell) -> None:
    assert play("guides/koi.md", shell) == 3
