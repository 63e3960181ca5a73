"""The guide to agent frameworks is a session: its programs run in environments made by lock files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Section, list_sections, table_rows
from tests.docs.shell import Shell
from tests.interop.frameworks.provider import ANSWER, run_provider
from tests.interop.frameworks.running import HERE, PEERS, framework_python, run_program

PAGE = ROOT / "docs" / "guides" / "agent-frameworks.md"
FRAMEWORKS = {"pydantic-ai": "pydantic-ai", "OpenAI Agents SDK": "openai-agents", "LangGraph": "langgraph"}
"""Title of a section → the lock file of its environment."""
_REAL_MODEL = re.compile(r"^model = .*  # a real model: (model = .*)$", re.MULTILINE)


def section(title: str) -> Section:
    return next(part for part in list_sections(PAGE) if part.title == title)


@pytest.fixture(scope="module", autouse=True)
def environments() -> None:
    """Makes the environments while the home folder with the cache of packages is still that of the user."""
    for name in PEERS:
        framework_python(name)


@dataclass(frozen=True, slots=True)
class Mesh:
    """The mesh that the guide starts, and the shell that started it."""

    shell: Shell
    token: str


@pytest.fixture
def mesh(shell: Shell) -> Mesh:
    ((hub, export),) = section("Start a mesh").commands()
    shell.type(hub)
    command = re.fullmatch(r"export RETINUE_TOKEN=\$\((.+)\)", export)
    assert command, export
    return Mesh(shell, shell.type(command[1]).strip())


def test_the_guide_installs_what_the_lock_files_lock() -> None:
    for title, name in FRAMEWORKS.items():
        install, *_ = section(title).commands()[0]
        requirements = (HERE / "locks" / f"{name}.in").read_text("utf-8").split()
        assert install.removeprefix("pip install ").replace('"', "").split() == requirements


def test_the_versions_of_the_guide_are_those_of_the_lock_files() -> None:
    rows = table_rows(section("Versions").text, "environment")
    assert [name for name, _ in rows] == list(PEERS)
    for name, packages in rows:
        locked = (HERE / "locks" / f"{name}.txt").read_text("utf-8").splitlines()
        for package in packages.split(", "):
            assert package.replace(" ", "==") in locked


@pytest.mark.timeout(600)
def test_the_programs_of_the_guide_list_the_tools_and_answer_with_a_result(
    mesh: Mesh, fresh_folder: Path
) -> None:
    for title, name in FRAMEWORKS.items():
        _, (run,) = section(title).commands()
        file = run.removeprefix("python ")
        assert f"as `{file}`:" in section(title).text
        (program, *_) = section(title).blocks("python")
        (fresh_folder / file).write_text(mesh.shell.to_real(program), encoding="utf-8")
        environment = {"RETINUE_TOKEN": mesh.token}
        *tools, answer = run_program(name, file, environment=environment, folder=fresh_folder).splitlines()
        assert {"find_skills", "plan-agent__create_plan"} <= set(tools)
        assert answer.startswith("Begin so: Call what is listed below in a limited subprocess")

        # the line for a real model, with a server in the place of the provider's
        real, count = _REAL_MODEL.subn(r"\1", program)
        assert count == 1
        (fresh_folder / file).write_text(mesh.shell.to_real(real), encoding="utf-8")
        with run_provider() as url:
            environment |= {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": url}
            output = run_program(name, file, environment=environment, folder=fresh_folder)
        assert output.splitlines()[-1] == ANSWER
