"""An agent that was killed answers a repeated idempotency key with the first outcome, over HTTP."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import orjson
import urllib3

from tests.ports import reserve_port
from tests.processes.running import Program, program
from tests.requirements import requirement

AGENT = """
from pathlib import Path

from retinue import Agent

agent = Agent("till", version="1.0.0")


@agent.skill(expose=True)
async def charge(amount: int) -> int:
    '''Notes an amount; the answer is how many it has noted.'''
    log = Path(__file__).with_name("log")
    with log.open("a") as file:
        file.write(f"{amount}\\n")
    if amount < 0:
        raise ValueError("declined")
    return len(log.read_text().splitlines())
"""

_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))


def charge(till: Program, key: str, amount: int, token: str | None = None) -> Any:
    """The result of one request, or the message of its error."""
    headers = {"content-type": "application/json", "idempotency-key": key}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "charge", "params": {"amount": amount}})
    reply = orjson.loads(
        _http.request("POST", f"{till.url_in('till 1.0.0 at')}/execute", body=body, headers=headers).data
    )
    return reply["result"] if "result" in reply else reply["error"]["message"]


@requirement("P-31")
def test_a_killed_agent_answers_repeated_keys_with_their_first_outcomes(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "till.py").write_text(AGENT)
    serve = ("serve", "till.py", "--port", str(reserve_port()))
    with program(*serve, cwd=tmp_path) as till:
        assert charge(till, "run-1/pay", 5) == 1
        token = (retinue_home / "keys" / "local.token").read_text()
        assert charge(till, "run-1/refund", -5) == "Execution failed: declined"
        till.end(signal.SIGKILL)
    with program(*serve, cwd=tmp_path) as till:
        assert charge(till, "run-1/pay", 5) == 1
        assert charge(till, "run-1/refund", -5) == "Execution failed: declined"
        assert (tmp_path / "log").read_text().splitlines() == ["5", "-5"]
        assert "used with other arguments" in charge(till, "run-1/pay", 6)
        assert charge(till, "run-1/pay", 5, token) == 3  # another caller's key
        assert charge(till, "run-2/pay", 5) == 4
        till.end(signal.SIGKILL)
    with program(*serve, cwd=tmp_path) as till:
        assert [charge(till, "run-2/pay", 5), charge(till, "run-1/pay", 5, token)] == [4, 3]
    assert (tmp_path / "log").read_text().splitlines() == ["5", "-5", "5", "5"]
