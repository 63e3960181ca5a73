"""A2A tasks and the process that runs them: killed, started again, stopped."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import orjson
import urllib3

from tests.processes.running import Program, program, wait_until

_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))

AGENT = '''
import asyncio
from retinue import Agent, Context
agent = Agent("keeper", version="1.0.0")

@agent.skill
async def wait(ctx: Context) -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return "never"

@agent.skill
async def ask(ctx: Context) -> str:
    """Asks."""
    return await ctx.elicit("Who?", str)

@agent.skill
async def greet(name: str) -> str:
    """Says hello."""
    return f"hello {name}"
'''


def ask(url: str, method: str, params: Any) -> Any:
    """One request of 1.x."""
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    headers = {"content-type": "application/json", "a2a-version": "1.0"}
    return orjson.loads(_http.request("POST", url, body=body, headers=headers).data)


def start(url: str, skill: str, **arguments: Any) -> Any:
    part = {"data": {"skill": skill, "arguments": arguments}}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [part]}
    params = {"message": message, "configuration": {"returnImmediately": True}}
    return ask(url, "SendMessage", params)["result"]["task"]


def wait_for_state(url: str, task: Any, state: str) -> None:
    """Wait for a state that a task has a moment after its first answer on a busy machine."""
    wait_until(lambda: ask(url, "GetTask", {"id": task["id"]})["result"]["status"]["state"] == state, state)


def serve(folder: Path, **environment: str) -> Any:
    file = folder / "keeper.py"
    file.write_text(AGENT)
    return program("serve", str(file), "--no-publish", cwd=folder, environment=environment)


def url_of(served: Program) -> str:
    return served.url_in("keeper 1.0.0 at")


def test_a_task_whose_process_was_killed_is_failed_with_the_reason(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        url = url_of(served)
        done, working, asking = start(url, "greet", name="Ann"), start(url, "wait"), start(url, "ask")
        wait_for_state(url, done, "TASK_STATE_COMPLETED")
        wait_for_state(url, working, "TASK_STATE_WORKING")
        wait_for_state(url, asking, "TASK_STATE_INPUT_REQUIRED")
        served.send(signal.SIGKILL)
        served.process.wait(60)
    with serve(tmp_path) as served:
        url = url_of(served)
        for lost in (working, asking):
            found = ask(url, "GetTask", {"id": lost["id"]})["result"]
            assert found["status"]["state"] == "TASK_STATE_FAILED"
            assert (
                "the process that ran this task has ended" in found["status"]["message"]["parts"][0]["text"]
            )
            assert found["history"][0] == lost["history"][0]
        kept = ask(url, "GetTask", {"id": done["id"]})["result"]
        assert kept["artifacts"][0]["parts"] == [{"text": "hello Ann"}]
        assert ask(url, "CancelTask", {"id": working["id"]})["error"]["code"] == -32002
        assert ask(url, "ListTasks", {})["result"]["totalSize"] == 3


def test_two_processes_of_one_agent_keep_tasks_of_their_own(tmp_path: Path) -> None:
    with serve(tmp_path) as one, serve(tmp_path) as other:
        task = start(url_of(one), "wait")
        start(url_of(other), "greet", name="Ben")
        found = ask(url_of(one), "GetTask", {"id": task["id"]})["result"]
        assert found["status"]["state"] == "TASK_STATE_WORKING", "the other one has not taken it for lost"
        assert ask(url_of(other), "GetTask", {"id": task["id"]})["error"]["code"] == -32001


def test_a_stop_ends_streams_and_fails_their_tasks_with_the_reason(tmp_path: Path) -> None:
    body: list[bytes] = []
    with serve(tmp_path, RETINUE_TIMEOUTS__DRAIN_S="0.2") as served:
        url = url_of(served)
        task = start(url, "wait")

        def follow() -> None:
            request = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task["id"]}}
            headers = {"content-type": "application/json", "a2a-version": "1.0"}
            reply = _http.request(
                "POST", url, body=orjson.dumps(request), headers=headers, preload_content=False
            )
            body.extend(reply.stream())

        follower = threading.Thread(target=follow)
        follower.start()
        wait_until(lambda: bool(body), "the first event")
        assert served.end(signal.SIGTERM) == 0
        follower.join(60)
    assert b"TASK_STATE_FAILED" in body[-1]
    assert b"the agent stopped while this task worked" in body[-1]
    with serve(tmp_path) as served:
        found = ask(url_of(served), "GetTask", {"id": task["id"]})["result"]
        assert "the agent stopped" in found["status"]["message"]["parts"][0]["text"]
