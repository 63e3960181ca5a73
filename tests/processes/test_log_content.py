"""Arguments and results of calls stay out of the logs and the audit of running processes."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from retinue.storage.state import State
from tests.processes.commands import retinue
from tests.processes.running import execute, program, wait_until
from tests.processes.test_a2a_tasks_process import ask
from tests.processes.test_mesh_key_stays import ask as send
from tests.processes.test_message_tasks_process import ask_for_result, say

ARGUMENT, RESULT, FAILING = "canary-of-the-argument", "canary-of-the-result", "canary-that-is-refused"
AGENT = f"""
from retinue import Agent, Context

agent = Agent("bird-agent", version="1.0.0")


@agent.skill(expose=True)
async def sing(text: str) -> str:
    \"\"\"Sings.\"\"\"
    return "{RESULT}" if "argument" in text else "no"


@agent.skill(expose=True)
async def pass_on(text: str, ctx: Context) -> str:
    \"\"\"Lets another one sing.\"\"\"
    return await ctx.call("sing", {{"text": text}})


@agent.skill(expose=True)
async def count(number: int) -> str:
    \"\"\"Takes a number only.\"\"\"
    return str(number)
"""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("debug", [{}, {"RETINUE_DEBUG": "1"}], ids=["usual", "debug"])
def test_no_log_line_and_no_audit_row_holds_an_argument_or_a_result(
    tmp_path: Path, retinue_home: Path, debug: dict[str, str]
) -> None:
    (tmp_path / "bird.py").write_text(AGENT)
    given = {"text": ARGUMENT}
    step = {"id": "a", "skill": "sing", "with": given}
    found: list[bytes] = []
    with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=debug) as hub:
        url = hub.url_in("hub at")
        with program("serve", "bird.py", cwd=tmp_path, environment=debug) as served:
            served.wait_for("published")
            own, token = served.url_in("bird-agent"), State(retinue_home).local_token()
            wait_until(lambda: "result" in execute(url, "sing", given, token), "the agent is known")
            calls = (
                ("sing", given),
                ("pass_on", given),
                ("call_skill", {"skill": "sing", "arguments": given}),
                ("orchestrate_workflow", {"workflow": {"name": "x", "steps": [step]}, "input": {}}),
            )
            found += [orjson.dumps(execute(url, skill, arguments, token)) for skill, arguments in calls]
            for skill, arguments, reason in (
                ("sing", {"text": ARGUMENT, "mood": FAILING}, b"unknown field 'mood'"),
                ("count", {"number": FAILING}, b"must be integer"),
            ):
                assert reason in orjson.dumps(execute(url, skill, arguments, token))
            found.append(orjson.dumps(execute(own, "sing", given, token)))
            for base in (own, f"{url}/agents/bird-agent"):
                part = {"data": {"skill": "sing", "arguments": given}}
                message = {"messageId": "m", "role": "ROLE_USER", "parts": [part]}
                found.append(orjson.dumps(ask(base, "SendMessage", {"message": message})))
                task = {"task_type": "sing", "task_parameters": given}
                accepted = say(base, "TASK_REQUEST", task)["payload"]["task_id_assigned"]
                found.append(orjson.dumps(ask_for_result(base, accepted)))
                call = {"name": "sing", "arguments": given, "_meta": META}
                body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
                headers = {
                    "content-type": "application/json",
                    "accept": "application/json, text/event-stream",
                    "mcp-protocol-version": "2026-07-28",
                    "mcp-method": "tools/call",
                    "mcp-name": "sing",
                }
                path = "/mcp" if base == own else "/agents/bird-agent/mcp"
                found.append(send(own if base == own else url, "POST", path, headers, body))
            assert served.end() == 0
        shown = retinue("logs", "--json", "-n", "1000", cwd=tmp_path)
        assert hub.end() == 0
    for answer in found:
        assert RESULT.encode() in answer, answer
    output = hub.output + served.output + shown
    assert output.count('"event":"call"') >= len(found), "the calls are logged"
    assert "unknown field 'mood'" in output, "with the reason of those that failed"
    kept = b"".join(path.read_bytes() for path in retinue_home.glob("retinue.db*"))
    assert b"bird-agent" in kept, "and in the audit"
    for canary in (ARGUMENT, RESULT, FAILING):
        assert canary not in output
        assert canary.encode() not in kept
