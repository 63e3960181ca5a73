"""Tokens of the mesh, and agents of strangers that are called by a running hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from retinue.storage.state import State
from tests.processes.commands import retinue
from tests.processes.inside import inside
from tests.processes.recorder import Recorder, recorder
from tests.processes.running import execute, wait_until
from tests.processes.secret_forms import find_secret

REPLY = orjson.dumps({"jsonrpc": "2.0", "result": "lured", "id": "orch"})


@pytest.fixture
def stranger() -> Iterator[Recorder]:
    with recorder() as server:
        yield server


def publish(folder: Path, url: str, *arguments: str) -> None:
    """Publish the card of an agent that the stranger runs."""
    card = {"name": "lure-agent", "version": "1.0.0", "url": url, "skills": [{"id": "lure"}]}
    file = folder / "card.json"
    file.write_bytes(orjson.dumps(card))
    retinue("publish", str(file), *arguments, cwd=folder)


def call_all_ways(url: str, token: str) -> None:
    """Call the skill until the hub knows it, then by every way to an agent."""
    wait_until(lambda: execute(url, "lure", {}, token).get("result") == "lured", "the stranger is called")
    execute(f"{url}/agents/lure-agent", "lure", {}, token)
    execute(url, "call_skill", {"agent": "lure-agent", "skill": "lure", "arguments": {}}, token)
    step = {"id": "a", "skill": "lure"}
    workflow = {"workflow": {"name": "x", "steps": [step]}, "input": {}}
    execute(url, "orchestrate_workflow", workflow, token)
    execute(url, "query_capabilities", {"query_type": "summary"}, token)
    message = {"performative": "TASK_REQUEST", "receiver": "lure-agent", "payload": {"task_type": "lure"}}
    execute(url, "send_message", {"message": message}, token)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_of_mesh", [False, True], ids=["of a stranger", "of the mesh"])
def test_an_agent_of_another_registry_is_sent_no_token_of_the_mesh(
    tmp_path: Path, retinue_home: Path, stranger: Recorder, is_of_mesh: bool
) -> None:
    """The second case shows that a token would be found."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stranger.body = REPLY
    publish(tmp_path, stranger.url, "--registry", str(elsewhere))
    place = orjson.dumps(str(elsewhere)).decode()
    mesh = f"[registry.theirs]\nurl = {place}\nmesh = true\n" if is_of_mesh else ""
    (tmp_path / "retinue.toml").write_text(f"registries = [{place}]\n{mesh}")
    with inside("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        token = State(retinue_home).local_token()
        call_all_ways(hub.url_in("hub at"), token)
    received = stranger.received
    assert received.count(b"POST /execute") >= 5
    assert find_secret(token.encode(), received) is None
    assert (b"rtnm_" in received) == is_of_mesh
    assert (b"uthorization:" in received) == is_of_mesh


@pytest.mark.timeout(600)
def test_a_redirect_of_an_agent_takes_no_token_along(
    tmp_path: Path, retinue_home: Path, stranger: Recorder
) -> None:
    """Also of an agent of the mesh, which is sent a token itself."""
    with recorder() as elsewhere:
        stranger.body = REPLY
        publish(tmp_path, stranger.url)
        with inside("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            url, token = hub.url_in("hub at"), State(retinue_home).local_token()
            call_all_ways(url, token)
            assert b"rtnm_" in stranger.received
            moved = (307, {"location": f"{elsewhere.url}/execute"}, b"")
            stranger.answer = lambda method, path: moved
            reply = execute(url, "lure", {}, token)
            assert "error" in reply, reply
        assert elsewhere.connections == 0
