"""Model agents as processes of a hub: started, listed, called by the official MCP client; no key leaks."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.llm.programs import answer, read_calls, write_program
from tests.llm.vendors import INPUT_TOKENS, Fail, Hang, Say, VendorServer, vendor
from tests.processes.commands import run_command
from tests.processes.running import WAIT_S, Program, execute, is_running, program, wait_until

KEY = "sk-very-secret-0123456789abcdef"

SETTINGS = """
[llm.mine]
provider = "anthropic"
model = "claude-test"
base_url = "{url}"
api_key_env = "MY_KEY"
scores = {{planning = 0.5, execution = 0.6, review = 0.7}}
context_window = 50000
languages = ["Python"]
prices = {{input = 3.0, output = 15.0}}
retries = 1
max_tokens_per_day = {limit}
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A search path with a fake claude, and no gemini."""
    write_program(tmp_path / "bin", "claude", answer("claude", "claude says hello"))
    own = [one for one in os.environ["PATH"].split(":") if not (Path(one) / "gemini").exists()]
    return ":".join([str(tmp_path / "bin"), *own])


def start_hub(
    tmp_path: Path, path: str, server: VendorServer, *options: str, limit: int = 1_000_000
) -> AbstractContextManager[Program]:
    """A hub; with ``--bare`` it starts the models and no other agents."""
    (tmp_path / "retinue.toml").write_text(SETTINGS.format(url=server.base_url, limit=limit))
    environment = {"PATH": path, "MY_KEY": KEY, "HOME": str(tmp_path)}
    if "--bare" in options:
        environment["RETINUE_HUB__MODELS"] = '["mine", "claude"]'
    return program("hub", *options, "--port", "0", cwd=tmp_path, environment=environment)


def wait_for_models(hub: Program) -> None:
    """Until the models are there, also where a slow machine took a second attempt."""
    for line in ("agents,", "mine at", "claude at"):
        hub.wait_for(line)


def list_agents(url: str, token: str) -> dict[str, Any]:
    rows = execute(url, "list_agents", {}, token)["result"]["agents"]
    return {row["name"]: row for row in rows}


def run(*arguments: str, cwd: Path, **environment: str) -> tuple[int, str]:
    done = run_command(*arguments, cwd=cwd, environment=environment)
    return done.returncode, done.stdout + done.stderr


async def test_a_hub_starts_the_models_that_this_machine_can_run_and_lists_the_others(
    tmp_path: Path, retinue_home: Path, path: str
) -> None:
    async with vendor("anthropic", Say("mine says hello")) as server:
        await asyncio.to_thread(_check_hub, tmp_path, retinue_home, path, server)
        assert server.keys == [KEY] * len(server.keys)
        assert len(server.requests) == 4
    await asyncio.to_thread(_check_no_key, retinue_home)


async def test_a_served_model_takes_conversations_larger_than_other_requests(
    tmp_path: Path, retinue_home: Path, path: str
) -> None:
    async with vendor("anthropic", Say("two pictures")) as server:
        await asyncio.to_thread(_check_large_conversation, tmp_path, path, server)
        assert len(server.requests) == 1
        assert len(json.dumps(server.requests[0])) > 6_000_000


def _check_large_conversation(tmp_path: Path, path: str, server: VendorServer) -> None:
    (tmp_path / "retinue.toml").write_text(SETTINGS.format(url=server.base_url, limit=1_000_000))
    environment = {"PATH": path, "MY_KEY": KEY, "HOME": str(tmp_path)}
    picture = {"type": "image", "data": "iVBO" * 800_000, "mime_type": "image/png"}
    with program("serve", "--llm", "mine", "--no-publish", cwd=tmp_path, environment=environment) as served:
        url = served.url_in("mine")
        message = {"role": "user", "content": [picture, picture]}
        assert execute(url, "complete", {"messages": [message]})["result"]["text"] == "two pictures"
        refused = execute(url, "complete", {"messages": [{"role": "user", "content": [picture] * 11}]})
        assert refused["error"]["data"]["type"] == "too_large"


def _fail_run(url: str, home: Path) -> None:
    """A run that fails with the error of the provider, so that it is in the journal."""
    token = (home / "keys" / "local.token").read_text().strip()
    steps = [{"id": "plan", "role": "plan", "agent": "mine", "prompt": "x"}]
    arguments = {"workflow": {"name": "one", "steps": steps}, "input": {}}
    run_id = execute(url, "start_run", arguments, token)["result"]["run"]
    wait_until(lambda: _status(url, run_id, token) == "failed", "the run fails")
    shown = json.dumps(execute(url, "show_run", {"run": run_id}, token))
    assert "the provider refused the key" in shown
    assert KEY not in shown


def _status(url: str, run_id: str, token: str) -> str:
    status: str = execute(url, "show_run", {"run": run_id}, token)["result"]["status"]
    return status


def _check_no_key(home: Path) -> None:
    """No file of the state holds the key: cards, audit, journals, spending."""
    files = [one for one in home.rglob("*") if one.is_file()]
    assert len(files) > 5
    for file in files:
        assert KEY.encode() not in file.read_bytes(), file


def _check_hub(tmp_path: Path, home: Path, path: str, server: VendorServer) -> None:
    with start_hub(tmp_path, path, server) as hub:
        url = hub.url_in("hub at")
        wait_for_models(hub)
        missing = hub.wait_for("gemini is not started")
        assert "no GEMINI_API_KEY, and no gemini command found" in missing
        assert "set GEMINI_API_KEY or install gemini" in missing
        token = (home / "keys" / "local.token").read_text().strip()
        # a model that a slow machine started at the second attempt is asked later whether it is there
        wait_until(
            lambda: all(
                list_agents(url, token)[name]["status"] == "available" for name in ("claude", "mine")
            ),
            "both models are available",
        )
        rows = list_agents(url, token)
        assert rows["gemini"]["status"] == "unavailable"
        assert rows["gemini"]["reason"].endswith("; set GEMINI_API_KEY or install gemini")
        assert execute(url, "plan", {"prompt": "x"}, token)["result"] in (
            "claude says hello",
            "mine says hello",
        )
        asked = execute(f"{url}/agents/claude", "agent.ask", {"prompt": "hello?"}, token)
        assert asked["result"] == "claude says hello"
        refused = execute(f"{url}/agents/gemini", "plan", {"prompt": "x"}, token)["error"]
        assert refused["data"]["type"] == "agent_unreachable"
        assert "no gemini command found" in refused["message"]
        assert "set GEMINI_API_KEY" in refused["data"]["remedy"]
        said = execute(f"{url}/agents/mine", "agent.ask", {"prompt": "hello?"}, token)
        assert said["result"] == "mine says hello"
        asyncio.run(_check_mcp(url, token))
        _check_run(url, token)
        children = [call["pid"] for call in read_calls(tmp_path / "bin")]
        code, told = run("doctor", cwd=tmp_path, PATH=path, MY_KEY=KEY)
        assert code == 0, told
        assert KEY not in told
        assert KEY not in hub.output
        rows_of_audit = [json.loads(line) for line in hub.lines if line.startswith("{")]
        used = [row["usage"] for row in rows_of_audit if row.get("agent") == "mine" and "usage" in row]
        assert used[0]["cost_usd"] > 0
        assert {"input_tokens", "output_tokens", "model"} <= used[0].keys()
    wait_until(lambda: not any(is_running(pid) for pid in children), "the commands have ended")


def _check_run(url: str, token: str) -> None:
    """A run tells what its models used, and the list of agents what each has spent."""
    definition = {
        "name": "two-steps",
        "steps": [
            {"id": "plan", "role": "plan", "agent": "mine", "prompt": "a bridge"},
            {"id": "review", "role": "review", "agent": "mine", "prompt": "review: ${{ steps.plan.text }}"},
        ],
    }
    arguments = {"workflow": definition, "input": {}}
    started = execute(url, "start_run", arguments, token)["result"]
    run_id = started["run"]
    wait_until(lambda: _status(url, run_id, token) == "done", "the run is done")
    shown = execute(url, "show_run", {"run": run_id}, token)["result"]
    assert shown["usage"]["input_tokens"] == 2 * INPUT_TOKENS
    assert shown["usage"]["cost_usd"] > 0
    rows = execute(url, "list_agents", {"detailed": True}, token)["result"]["agents"]
    spending = {row["name"]: row["spending"] for row in rows if "spending" in row}
    assert spending["mine"]["limits"] == {"max_tokens_per_day": 1_000_000}
    assert spending["mine"]["today"]["calls"] == 4
    assert spending["claude"]["today"]["cost_usd"] > 0
    assert "gemini" not in spending
    plain = execute(url, "list_agents", {}, token)["result"]["agents"]
    assert not any("spending" in row for row in plain)
    gemini = next(row for row in plain if row["name"] == "gemini")
    assert gemini["reason"].endswith("no GEMINI_API_KEY, and no gemini command found")


async def _check_mcp(url: str, token: str) -> None:
    async with Client(f"{url}/mcp") as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        # of a model only one tool, and none of one that is not started
        assert {one for one in tools if one.startswith(("mine__", "claude__", "gemini__"))} == {
            "mine__ask",
            "claude__ask",
        }
        result = await client.call_tool("mine__plan", {"prompt": "a bridge"})
        assert result.content[0].text == "mine says hello"  # type: ignore[union-attr]
        assert result.meta is not None
        assert result.meta["X-Retinue-Usage"]["cost_usd"] > 0


async def test_a_budget_is_kept_over_a_restart(tmp_path: Path, retinue_home: Path, path: str) -> None:
    async with vendor("anthropic", Say("ok")) as server:
        await asyncio.to_thread(_check_budget, tmp_path, retinue_home, path, server)
        assert len(server.requests) == 1


def _check_budget(tmp_path: Path, home: Path, path: str, server: VendorServer) -> None:
    for expected in ("result", "error"):
        # the instructions and the data rule alone take more than the second call has left
        with start_hub(tmp_path, path, server, "--bare", limit=520) as hub:
            url = hub.url_in("hub at")
            wait_for_models(hub)
            token = (home / "keys" / "local.token").read_text().strip()
            if expected == "error":
                spent = home / "spending" / "mine.json"
                spent.write_text(json.dumps({**json.loads(spent.read_text()), "tokens": 400}))
            reply = execute(f"{url}/agents/mine", "agent.ask", {"prompt": "x"}, token)
            assert expected in reply, reply
    assert reply["error"]["data"]["type"] == "budget_spent"
    assert "llm.mine.max_tokens_per_day" in reply["error"]["data"]["remedy"]


async def test_cancelling_a_call_over_mcp_ends_the_request_to_the_model(
    tmp_path: Path, retinue_home: Path, path: str
) -> None:
    async with vendor("anthropic", Hang("let me think")) as server:
        with start_hub(tmp_path, path, server, "--bare") as hub:
            url = await asyncio.to_thread(hub.url_in, "hub at")
            await asyncio.to_thread(wait_for_models, hub)
            told = asyncio.Event()

            async def note(progress: float, total: float | None, message: str | None) -> None:
                if message:
                    told.set()

            async with asyncio.timeout(WAIT_S), Client(f"{url}/mcp") as client:
                call = asyncio.create_task(
                    client.call_tool("mine__plan", {"prompt": "x"}, progress_callback=note)
                )
                await server.begun.wait()
                await told.wait()
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                await server.gone.wait()


async def test_the_error_of_a_provider_reaches_the_client_with_its_remedy_and_without_the_key(
    tmp_path: Path, retinue_home: Path, path: str
) -> None:
    async with vendor("anthropic", Fail(401, "authentication_error", f"invalid key {KEY}")) as server:
        with start_hub(tmp_path, path, server, "--bare") as hub:
            url = await asyncio.to_thread(hub.url_in, "hub at")
            await asyncio.to_thread(wait_for_models, hub)
            async with asyncio.timeout(WAIT_S), Client(f"{url}/mcp") as client:
                result = await client.call_tool("mine__plan", {"prompt": "x"})
            text = result.content[0].text  # type: ignore[union-attr]
            assert result.is_error
            assert "the provider refused the key (status 401)" in text
            assert "set MY_KEY to a valid key" in text
            assert KEY not in text
            await asyncio.to_thread(_fail_run, url, retinue_home)
        assert KEY not in hub.output
    await asyncio.to_thread(_check_no_key, retinue_home)


def test_a_model_that_cannot_run_here_is_not_served(tmp_path: Path) -> None:
    code, told = run("serve", "--llm", "gemini", cwd=tmp_path, PATH=str(Path(sys.executable).parent))
    assert code != 0
    assert "no GEMINI_API_KEY, and no gemini command found" in told
    code, told = run("serve", "--llm", "gemni", cwd=tmp_path)
    assert code != 0
    assert "did you mean gemini?" in told
