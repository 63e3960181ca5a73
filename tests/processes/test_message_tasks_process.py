"""A task that an agent has accepted survives ``kill -9`` as a result or as a FAILURE."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import orjson
import urllib3

from tests.processes.running import program, wait_until
from tests.requirements import requirement

AGENT = '''
import asyncio

from retinue import Agent

agent = Agent("sleeper", version="1.0.0")


@agent.skill
async def nap(hours: int) -> str:
    """Sleeps."""
    await asyncio.sleep(hours * 3600)
    return "awake"
'''


def say(url: str, performative: str, payload: Any, **more: Any) -> Any:
    headers = {"content-type": "application/json", "prefer": "respond-async"}
    body = orjson.dumps({"performative": performative, "payload": payload, **more})
    reply = urllib3.request("POST", f"{url}/messages", body=body, headers=headers, timeout=120.0)
    return orjson.loads(reply.data)


def ask_for_result(url: str, reference: str) -> Any:
    """The answer to QUERY_REF, once the task has ended."""
    replies: list[Any] = []

    def has_ended() -> bool:
        replies.append(say(url, "QUERY_REF", {"reference": reference}))
        return bool(replies[-1]["performative"] != "TASK_ACCEPT")

    wait_until(has_ended, "the task ends")
    return replies[-1]


@requirement("W-20")
def test_accepted_tasks_are_answered_for_after_their_process_was_killed(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    with program("serve", "agent.py", "--no-publish", cwd=tmp_path) as first:
        url = first.url_in("sleeper 1.0.0 at")
        for name, hours in (("short", 0), ("long", 9)):
            task = {"task_type": "nap", "task_parameters": {"hours": hours}}
            assert say(url, "TASK_REQUEST", task, message_id=name)["performative"] == "TASK_ACCEPT"
        assert ask_for_result(url, "short")["performative"] == "INFORM_RESULT"
        first.end(signal.SIGKILL)
    with program("serve", "agent.py", "--no-publish", cwd=tmp_path) as second:
        url = second.url_in("sleeper 1.0.0 at")
        short, long = (say(url, "QUERY_REF", {"reference": name}) for name in ("short", "long"))
    assert short["payload"]["result_details"] == {"result": "awake"}
    assert (long["performative"], long["payload"]["error_code"]) == ("FAILURE", "interrupted")
