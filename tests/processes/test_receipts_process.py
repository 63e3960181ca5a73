"""Two hubs as processes: one calls an agent of the other, and attaches what it measured over ``/v2``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retinue.storage.state import State
from tests.processes.commands import retinue, run_command
from tests.processes.running import execute, program

BROKEN = """
from retinue import Agent

agent = Agent("broken-agent", version="1.0.0")


@agent.skill(read_only=True)
def plan_journey(text: str) -> str:
    "Plans a journey by train."
    raise RuntimeError("no trains")
"""


def test_a_hub_ranks_by_the_receipt_of_another_one_until_it_trusts_its_key_no_more(tmp_path: Path) -> None:
    host, issuer = tmp_path / "host", tmp_path / "issuer"
    for folder in (host, issuer):
        folder.mkdir()
    (host / "broken_agent.py").write_text(BROKEN)
    at_host = {"RETINUE_HOME": str(host / "state")}

    def show() -> dict[str, Any]:
        (row,) = json.loads(retinue("receipts", "broken-agent", "--json", cwd=host, environment=at_host))[
            "receipts"
        ]
        return dict(row)

    with (
        program("hub", "--bare", "--port", "0", cwd=host, environment=at_host) as hub,
        program("serve", "broken_agent.py", cwd=host, environment=at_host) as agent,
    ):
        url = hub.url_in("hub at")
        agent.wait_for("published")
        token = State(host / "state").local_token()
        at_issuer = {
            "RETINUE_HOME": str(issuer / "state"),
            "RETINUE_REGISTRIES": json.dumps([url.replace("://", f"://retinue:{token}@")]),
        }
        with program("hub", "--bare", "--port", "0", cwd=issuer, environment=at_issuer) as other:
            place = other.url_in("hub at")
            own = State(issuer / "state").local_token()
            for number in range(25):
                reply = execute(place, "plan_journey", {"text": str(number)}, token=own)
                assert "no trains" in reply["error"]["message"]
            published = json.loads(
                retinue("receipts", "--publish", "--json", cwd=issuer, environment=at_issuer)
            )["published"]
            assert [(row["agent"], row["calls"], row.get("error")) for row in published] == [
                ("broken-agent", 25, None)
            ]
            keys = retinue("keys", "--jwks", cwd=issuer, environment=at_issuer)
        (host / "issuer.json").write_text(keys)
        retinue("keys", "trust", "issuer", "issuer.json", cwd=host, environment=at_host)
        row = show()
        assert (row["issuer"], row["calls"], row["failures"]) == ("issuer", 25, {"execution_error": 25})
        assert row["weight"] > 0.6
        why = run_command("find", "plan a journey", "--why", "broken-agent", cwd=host, environment=at_host)
        assert "for failures that other hubs measured" in why.stdout + why.stderr
        retinue("keys", "forget", "issuer", cwd=host, environment=at_host)
        row = show()
        assert row["weight"] == 0.0
        assert "not trusted" in row["reason"]
