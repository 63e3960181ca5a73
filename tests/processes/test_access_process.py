"""Tokens and running processes: effective at once, in no log, and good from another machine."""

from __future__ import annotations

import secrets
from pathlib import Path

import orjson
import urllib3
from joserfc import jwt
from joserfc.jwk import OctKey

from retinue.storage.mesh_key import mesh_key
from retinue.storage.state import State
from retinue.web.mesh_tokens import MeshBearer
from tests.processes.commands import retinue, run_command
from tests.processes.inside import inside
from tests.processes.running import execute, program, wait_until, write_agent
from tests.requirements import requirement

CLOSED = {"RETINUE_AUTH__ANONYMOUS": "false"}
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))


def is_let_in(url: str, token: str) -> bool:
    return "result" in execute(url, "who", token=token)


@requirement("S-17")
def test_tokens_come_and_go_while_hub_and_agent_run(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with inside("hub", "--bare", "--port", "0", cwd=tmp_path, environment=CLOSED) as hub:
        url = hub.url_in("hub at")
        with inside("serve", str(agent), cwd=tmp_path, environment=CLOSED) as served:
            served.wait_for("published")
            own = served.url_in("one-agent")
            assert execute(url, "who")["error"]["code"] == -33001
            examined = orjson.loads(retinue("doctor", "--json", cwd=tmp_path, environment=CLOSED))
            (listed,) = [check for check in examined["checks"] if check["check"] == "tool list"]
            assert listed["status"] == "ok"
            assert listed["found"].startswith("refused without a token; ")
            token = retinue("token", "new", "--scope", "mesh", "--name", "ci", cwd=tmp_path)
            assert is_let_in(url, token)
            assert is_let_in(own, token)
            (row,) = orjson.loads(retinue("token", "list", "--json", cwd=tmp_path))["tokens"]
            assert row["last_used"] is not None
            retinue("token", "revoke", row["id"], cwd=tmp_path)
            wait_until(lambda: not is_let_in(url, token), "the hub forgets the token")
            wait_until(lambda: not is_let_in(own, token), "the agent forgets the token")


@requirement("S-17")
def test_no_token_is_in_any_log_or_file_wherever_it_was_put(tmp_path: Path, retinue_home: Path) -> None:
    (tmp_path / "leaky.py").write_text(
        "from retinue import Agent\n\nagent = Agent('leaky-agent')\n\n\n"
        "@agent.skill\nasync def leak(text: str) -> str:\n"
        '    """Fails, and says what it was given."""\n'
        "    raise ValueError(f'cannot use {text}')\n"
    )
    debug = {"RETINUE_DEBUG": "1"}
    with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=debug) as hub:
        url = hub.url_in("hub at")
        with program("serve", "leaky.py", cwd=tmp_path, environment=debug) as served:
            served.wait_for("published")
            state = State(retinue_home)
            tokens = {
                "local": state.local_token(),
                "given out": retinue("token", "new", "--scope", "mesh", cwd=tmp_path),
                "unknown": f"rtn_00112233_{secrets.token_urlsafe(32)}",
                "join": retinue("token", "new", "--join", cwd=tmp_path),
                "jwt": jwt.encode({"alg": "HS256"}, {"sub": "x"}, OctKey.import_key(secrets.token_bytes(32))),
                "mesh": MeshBearer(mesh_key(state.keys)).make(url),
                "other": f"rtnm_{secrets.token_urlsafe(60)}",
            }
            for token in tokens.values():
                execute(url, "leak", {"text": token}, token=token)
                execute(url, "leak", {"text": token})
                execute(served.url_in("leaky-agent"), "leak", {"text": f"x={token}&"})
                execute(url, token)
                execute(f"{url}/agents/{token}", "leak")
                for path in (f"/execute?access_token={token}", f"/v2/{token}/tags/list", f"/{token}"):
                    _http.request("GET", url + path, headers={"x-retinue-for": token})
                trace = {
                    "x-openstarry-trace-id": token,
                    "idempotency-key": token,
                    "content-type": "application/json",
                }
                body = orjson.dumps({"jsonrpc": "2.0", "method": "list_agents", "params": {}, "id": token})
                _http.request("POST", f"{url}/execute", body=body, headers=trace)
                _http.request("POST", f"{url}/execute", body=b"{" + token.encode(), headers=trace)
            assert served.end() == 0
        assert hub.end() == 0
        output = hub.output + served.output
        assert "cannot use" in output, "there was something to hide"
        assert "[token]" in output
        kept = b"".join(path.read_bytes() for path in retinue_home.glob("retinue.db*"))
        for kind, token in tokens.items():
            for part in (token, max(token.split("_"), key=len), token[-30:]):
                assert part not in output, kind
                assert part.encode() not in kept, kind


@requirement("S-17")
def test_an_agent_of_another_state_joins_by_a_token_and_is_called_through_the_hub(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    other = {"RETINUE_HOME": str(tmp_path / "other-machine"), **CLOSED}
    with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=CLOSED) as hub:
        url = hub.url_in("hub at")
        join = retinue("token", "new", "--join", "--name", "laptop", cwd=tmp_path)
        arguments = ("serve", str(agent), "--join", url)
        with program(*arguments, cwd=tmp_path, environment={**other, "RETINUE_JOIN": join}) as served:
            served.wait_for("published agents/one:v1")
            token = retinue("token", "new", "--scope", "mesh", cwd=tmp_path)
            assert execute(url, "who", token=token)["result"] == "one"
            listed = retinue("agents", "--json", cwd=tmp_path, environment={**other, "RETINUE_HUB": url})
            assert [row["name"] for row in orjson.loads(listed)["agents"]] == ["one-agent"]
            assert served.end() == 0
        # what it was told is kept: the next start needs no variable
        with program(*arguments, cwd=tmp_path, environment=other) as served:
            served.wait_for("published")
            assert execute(url, "who", token=token)["result"] == "one"
        assert join not in hub.output + served.output


@requirement("S-17")
def test_a_second_hub_of_the_mesh_calls_the_agents_of_the_first_also_when_that_is_gone(
    tmp_path: Path,
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    other = {"RETINUE_HOME": str(tmp_path / "other-machine"), **CLOSED}
    with inside("serve", str(agent), cwd=tmp_path, environment=CLOSED) as served:
        served.wait_for("published")
        with inside("hub", "--bare", "--port", "0", cwd=tmp_path, environment=CLOSED) as first:
            url = first.url_in("hub at")
            arguments = ("hub", "--bare", "--port", "0", "--join", url)
            refused = run_command(*arguments, cwd=tmp_path, environment=other)
            assert refused.returncode == 2
            assert "has not joined that hub" in refused.stderr
            join = retinue("token", "new", "--join", "--name", "second", cwd=tmp_path)
            with inside(*arguments, cwd=tmp_path, environment={**other, "RETINUE_JOIN": join}) as second:
                second.wait_for("1 agents")
                token = retinue("token", "new", "--scope", "mesh", cwd=tmp_path, environment=other)
                assert is_let_in(second.url_in("hub at"), token)
            assert first.end() == 0
        with inside(*arguments, cwd=tmp_path, environment=other) as second:
            # what was read before is kept, and so is what was told
            second.wait_for("exposed to MCP clients")
            assert is_let_in(second.url_in("hub at"), token)


@requirement("S-17")
def test_a_token_of_the_mesh_that_was_lured_elsewhere_opens_no_other_endpoint(
    tmp_path: Path, retinue_home: Path
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    for address in ("127.0.0.1", "0.0.0.0"):
        arguments = ("serve", str(agent), "--host", address)
        with inside(*arguments, cwd=tmp_path, environment=CLOSED) as served:
            served.wait_for("published")
            url = served.url_in("one-agent")
            bearer = MeshBearer(mesh_key(retinue_home / "keys"))
            assert is_let_in(url, bearer.make(url))
            for place in ("127.0.0.1:6666", "203.0.113.6:80"):
                answer = _http.request(
                    "POST",
                    f"{url}/execute",
                    body=b'{"jsonrpc":"2.0","method":"who","params":{},"id":"1"}',
                    headers={
                        "host": place,
                        "authorization": f"Bearer {bearer.make(f'http://{place}')}",
                        "content-type": "application/json",
                    },
                )
                assert answer.status in (401, 403), answer.data


def test_an_open_address_is_refused_unless_tokens_are_wanted(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    hub = ("hub", "--bare", "--host", "0.0.0.0", "--port", "0")
    for arguments in (hub, ("serve", str(agent), "--host", "0.0.0.0")):
        refused = run_command(*arguments, cwd=tmp_path)
        assert refused.returncode == 2
        assert "auth.anonymous" in refused.stderr
        with inside(*arguments, cwd=tmp_path, environment=CLOSED) as started:
            started.wait_for(" at http://")
            assert started.end() == 0
