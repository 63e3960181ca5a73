"""The nearest name of an unknown argument is in the text of an error at every endpoint: models read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from tests.processes.inside import inside

_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))
GREET = '''
from retinue import Agent

agent = Agent("greet-agent")


@agent.skill
def greet(name: str) -> str:
    """Greets."""
    return name
'''
HINT = "unknown field 'nam' — did you mean 'name'?"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of an agent: its own, and the one through the hub."""
    folder: Path = tmp_path_factory.mktemp("hints")
    (folder / "greet.py").write_text(GREET)
    with inside("hub", "--bare", "--port", "0", cwd=folder) as hub:
        hub_url = hub.url_in("hub at")
        with inside("serve", "greet.py", cwd=folder) as agent:
            agent.wait_for("published")
            yield {"agent": agent.url_in("greet-agent"), "hub": f"{hub_url}/agents/greet-agent"}


def post(url: str, body: dict[str, Any], **headers: str) -> Any:
    sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return orjson.loads(_http.request("POST", url, body=orjson.dumps(body), headers=sent).data)


@pytest.mark.parametrize("place", ["agent", "hub"])
def test_over_a2a_of_both_versions_the_message_of_the_error_has_it(
    addresses: dict[str, str], place: str
) -> None:
    data = {"skill": "greet", "arguments": {"nam": "Ada"}}
    newer = {"messageId": "1", "role": "ROLE_USER", "parts": [{"data": data}]}
    older = {"kind": "message", "messageId": "1", "role": "user", "parts": [{"kind": "data", "data": data}]}
    for method, message, headers in (
        ("SendMessage", newer, {"a2a_version": "1.0"}),
        ("message/send", older, {}),
    ):
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
        error = post(f"{addresses[place]}/", asked, **headers)["error"]
        assert error["message"].endswith(f"missing required field 'name'; {HINT}"), error


@pytest.mark.parametrize("place", ["agent", "hub"])
def test_in_a_reply_to_a_message_the_reason_has_it(addresses: dict[str, str], place: str) -> None:
    payload = {"task_type": "greet", "task_parameters": {"nam": "Ada"}}
    asked = {"performative": "TASK_REQUEST", "receiver": {"agent_id": "greet-agent"}, "payload": payload}
    assert post(f"{addresses[place]}/messages", asked)["payload"]["reason_text"].endswith(HINT)


def test_at_a_trait_of_koi_the_detail_has_it(addresses: dict[str, str]) -> None:
    assert post(f"{addresses['agent']}/tools/call/greet", {"nam": "Ada"})["detail"].endswith(HINT)
