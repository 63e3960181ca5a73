"""A protocol in a distribution of its own: installed beside Retinue, it is a part of every hub."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3

from scripts import release
from scripts.environment import ROOT
from scripts.release import Built, SkippedError
from tests.processes.running import Program, execute, program, wait_until

TOY = ROOT / "tests" / "packages" / "toy-protocol"
NOBODY = "http://127.0.0.1:9"
AGENT = '''
from retinue import Agent

agent = Agent("greeter", version="1.0.0")


@agent.skill(expose=True)
async def greet(name: str) -> str:
    """Greets a person."""
    return f"Hello, {name}!"
'''

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def retinue(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program ``retinue`` of an environment into which ``retinue-toy`` was installed."""
    command = [*map(str, (built.uv, "build", "--quiet", "--wheel", "--out-dir", built.folder, TOY))]
    subprocess.run(command, check=True, env=dict(built.environment))
    try:
        folder = tmp_path_factory.mktemp("installed") / "environment"
        return release.install(built, folder, "retinue-toy") / "retinue"
    except SkippedError as error:
        pytest.skip(str(error))


Start = Callable[..., Program]


@pytest.fixture
def start(retinue: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a program in a state folder of this name; the rest of the environment is given by name."""
    with ExitStack() as stack:

        def enter(state: str, *arguments: str, **variables: str) -> Program:
            environment = {"RETINUE_HOME": str(tmp_path / state), **variables}
            return stack.enter_context(
                program(*arguments, cwd=tmp_path, environment=environment, script=retinue)
            )

        yield enter


def post(url: str, body: Any) -> tuple[int, Any]:
    reply = urllib3.request("POST", url, json=body, timeout=120.0)
    return reply.status, json.loads(reply.data)


def read(url: str, token: str) -> str:
    return urllib3.request(
        "GET", url, headers={"authorization": f"Bearer {token}"}, timeout=120.0
    ).data.decode()


def test_a_skill_is_called_through_a_foreign_protocol_and_back(start: Start, tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(AGENT, "utf-8")
    start("far", "serve", "greeter.py").wait_for("published")
    far_hub = start("far", "hub", "--bare", "--port", "0")
    far = far_hub.url_in("hub at")
    far_hub.wait_for("1 agents")
    servers = json.dumps([far, NOBODY])
    near_hub = start("near", "hub", "--bare", "--port", "0", RETINUE_TOY__SERVERS=servers)
    near = near_hub.url_in("hub at")
    near_hub.wait_for("1 agents")

    # /execute at the near hub, the toy protocol between the hubs, /execute at the agent
    assert execute(near, "greet", {"name": "Ada"})["result"] == "Hello, Ada!"
    # the toy protocol at the far hub, /execute at the agent
    assert post(f"{far}/toy/greeter/greet", {"name": "Bob"}) == (200, {"result": "Hello, Bob!"})
    # the toy protocol at the near hub, and again between the hubs
    assert post(f"{near}/toy/greeter/greet", {"name": "Cy"}) == (200, {"result": "Hello, Cy!"})

    status, missing = post(f"{far}/toy/greeter/nothing", {})
    assert (status, "nothing" in missing["detail"]) == (404, True)
    far_token, near_token = (
        (tmp_path / state / "keys" / "local.token").read_text("utf-8").strip() for state in ("far", "near")
    )
    assert 'retinue_toy_calls_total{outcome="done"} 3.0' in read(f"{far}/metrics", far_token)
    wait_until(lambda: NOBODY in read(f"{near}/ready", near_token), "the server that is not there")

    listed = start("far", "toy", far)
    assert (listed.wait(), listed.output) == (0, "greeter: greet")
    checked = start("near", "doctor", "--json", RETINUE_TOY__SERVERS=servers)
    checked.wait()
    assert "2 servers" in checked.output
    assert far_hub.end() == 0
    assert "toy: 4 calls" in far_hub.lines
