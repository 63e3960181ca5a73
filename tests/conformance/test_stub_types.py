"""mypy accepts what is made of real tools, and checks the calls of a program.

``real_tools.json`` has 100 tools with their schemas as published: those of MCP servers on npm (the versions
of ``benchmarks/tool_queries``) and operations of public OpenAPI documents as ``retinue.openapi`` converts
them; ``source`` names each. The licences of the sources are MIT and Apache-2.0. Long descriptions are cut.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from typing_extensions import TypedDict

from retinue import Agent
from retinue.client.mesh_connection import MeshConnection
from retinue.client.stubs.module import render_module
from retinue.client.stubs.offers import Offer, choose_skills, read_offers
from retinue.core.errors import InvalidParametersError
from retinue.testing import connect_agents
from tests.client.stubs.generated import check_statements

TOOLS = Path(__file__).parents[1] / "client" / "stubs" / "real_tools.json"
MAX_TOOLS_BYTES = 200_000

CHECK = """\
import sys
from mypy import api
messages, faults, status = api.run(sys.argv[1:])
print(messages, faults)
sys.exit(status)
"""

Check = Callable[..., tuple[int, list[str]]]


@pytest.fixture(scope="module")
def check_types(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Run mypy in strict mode over texts of modules by name; gives its status and its messages."""
    cache = tmp_path_factory.mktemp("mypy")

    def check(folder: Path, **modules: str) -> tuple[int, list[str]]:
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        options = ["--strict", "--config-file=", f"--cache-dir={cache}", "--no-error-summary"]
        done = subprocess.run(
            [sys.executable, "-c", CHECK, *options, *(f"{name}.py" for name in modules)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, (done.stdout + done.stderr).strip().splitlines()

    return check


def test_the_functions_of_100_real_tools_pass_strict_mypy(check_types: Check, tmp_path: Path) -> None:
    content = TOOLS.read_bytes()
    assert len(content) <= MAX_TOOLS_BYTES
    offers = [
        Offer(
            tool["server"], tool["name"], tool["description"], tool["inputSchema"], tool.get("outputSchema")
        )
        for tool in orjson.loads(content)
    ]
    skills = choose_skills(offers)
    assert len(skills) == 100
    asynchronous, synchronous = (
        render_module(skills, command="retinue stubs tools.py", is_sync=is_sync) for is_sync in (False, True)
    )
    check_statements(asynchronous)
    check_statements(synchronous)
    assert check_types(tmp_path, tools=asynchronous, sync_tools=synchronous) == (0, [])
    for text in (asynchronous, synchronous):
        assert text.count("Unpack[") > 80
        assert text.count(" | Any") == 0


class Step(TypedDict):
    name: str
    parts: list[Step]


class Plan(TypedDict):
    goal: str
    steps: list[Step]


def make_agents() -> tuple[Agent, Agent]:
    planner = Agent("plan-agent", version="1.0.0")
    reviewer = Agent("review-agent", version="1.0.0")

    @planner.skill
    def create_plan(
        requirements: str, style: Literal["short", "long"] = "short", limit: int | None = None
    ) -> Plan:
        """Creates a plan."""
        names = ["write", "run"] if style == "long" else ["write"]
        return {"goal": requirements, "steps": [{"name": name, "parts": []} for name in names[:limit]]}

    @planner.skill
    def press(key: str, times: int = 1) -> str:
        """Presses a key."""
        return key * times

    @planner.skill("rate")
    def rate_plan(plan: str) -> float:
        """Rates a plan."""
        return 0.5

    @reviewer.skill("rate")
    def rate_code(code: str) -> Literal["good", "bad"]:
        """Rates code."""
        return "good" if "return" in code else "bad"

    return planner, reviewer


RIGHT = """
import stubs
from retinue.client.mesh_connection import MeshConnection


async def program(mesh: MeshConnection) -> list[str]:
    plan = await stubs.create_plan(mesh, requirements="tests", style="long", timeout_s=5)
    first = plan["steps"][0]
    parts: list[stubs.CreatePlanOutputStep] = first["parts"]
    arguments: stubs.CreatePlanInput = {"requirements": "code"}
    short = await stubs.create_plan(mesh, **arguments, agent="plan-agent", version=">=1,<2")
    keys = await stubs.press(mesh, {"key": "x", "times": 3}, key="once")
    rating = await stubs.rate_at_review_agent(mesh, code="return")
    half: float = await stubs.rate_at_plan_agent(mesh, plan="…")
    names = [first["name"], *(part["name"] for part in parts)]
    return [plan["goal"], *names, short["goal"], keys, rating, str(half)]
"""

WRONG = """
import stubs
from retinue.client.mesh_connection import MeshConnection


async def program(mesh: MeshConnection) -> None:
    await stubs.create_plan(mesh, requirements=7)
    await stubs.create_plan(mesh, requirements="tests", style="longer")
    await stubs.create_plan(mesh, requirement="tests")
    await stubs.create_plan(mesh)
    await stubs.press(mesh, {"key": 1})
    await stubs.press(mesh, key="x")
    plan = await stubs.create_plan(mesh, requirements="tests")
    plan["steps"][0]["title"]
    stubs.rate(mesh)
"""


async def make_stubs(mesh: MeshConnection) -> str:
    async def read(skill: str, arguments: dict[str, Any]) -> Any:
        return await mesh.call(skill, arguments)

    offers, missing = await read_offers(read)
    assert missing == []
    return render_module(choose_skills(offers), command="retinue stubs stubs.py")


async def test_a_right_program_passes_and_runs_and_a_wrong_one_is_refused(
    check_types: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect_agents(*make_agents()) as mesh:
        text = await make_stubs(mesh)
        assert await make_stubs(mesh) == text
        assert check_types(tmp_path, stubs=text, right=RIGHT) == (0, [])

        status, messages = check_types(tmp_path, stubs=text, wrong=WRONG)
        assert status == 1
        errors = {
            (int(line.split(":")[1]), line.rpartition("[")[2]) for line in messages if ": error:" in line
        }
        assert errors == {
            (7, "arg-type]"),
            (8, "arg-type]"),
            (9, "call-arg]"),
            (10, "call-arg]"),
            (11, "typeddict-item]"),
            (12, "call-arg]"),
            (14, "typeddict-item]"),
            (15, "attr-defined]"),
        }

        monkeypatch.syspath_prepend(str(tmp_path))
        for name in ("stubs", "right", "wrong"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        right, wrong = importlib.import_module("right"), importlib.import_module("wrong")
        assert await right.program(mesh) == ["tests", "write", "code", "xxx", "good", "0.5"]
        with pytest.raises(InvalidParametersError):
            await wrong.program(mesh)
