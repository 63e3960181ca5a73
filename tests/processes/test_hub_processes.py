"""A hub of several processes at one address: any of them may end, and the others go on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import urllib3

from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.mcp.clients import read_result
from tests.processes.commands import run_command
from tests.processes.freezing import freeze, list_databases
from tests.processes.hub_processes import (
    find_fork_server,
    find_leader,
    kill,
    list_children,
    wait_for_another,
)
from tests.processes.running import descendants, execute, is_running, program, wait_until, write_agent
from tests.time_bounds import Stopwatch

_AGENT_CALLS = re.compile(r'^retinue_calls_total\{agent="one-agent".*\} (\d+)', re.MULTILINE)
_UP = re.compile(r'^retinue_hub_process_up\{number="(\d)"\} 1\.0$', re.MULTILINE)
_FLOW = {"name": "flow", "steps": [{"id": "pause", "wait": "1s"}, {"id": "ask", "skill": "who"}]}
_ONCE = {"connection": "close"}
"""Each request has a connection of its own, because a process that is killed takes its connections along."""


def _metrics(url: str, token: str | None = None) -> str:
    head = _ONCE if token is None else {**_ONCE, "authorization": f"Bearer {token}"}
    reply = urllib3.request("GET", f"{url}/metrics", headers=head, timeout=120.0, retries=False)
    return reply.data.decode()


def _calls(url: str, count: int) -> list[float]:
    """Call the agent over a new connection each, by turns over MCP; the seconds that each call took."""
    spent_s = []
    for number in range(count):
        began = time.monotonic()
        assert (_call_tool(url) if number % 2 else _call(url)) == "one"
        spent_s.append(time.monotonic() - began)
    return spent_s


def _call(url: str) -> str:
    request = {"jsonrpc": "2.0", "method": "who", "id": 1}
    result: str = _post(f"{url}/agents/one-agent/execute", request, {})["result"]
    return result


def _call_tool(url: str) -> str:
    tool, prefix = "one-agent__who", "io.modelcontextprotocol/"
    meta = {
        f"{prefix}protocolVersion": "2026-07-28",
        f"{prefix}clientInfo": {"name": "test", "version": "1"},
        f"{prefix}clientCapabilities": {},
    }
    params = {"name": tool, "arguments": {}, "_meta": meta}
    head = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    reply = _post(f"{url}/mcp", request, head)
    assert "result" in reply, reply
    text: str = reply["result"]["content"][0]["text"]
    return text


def _post(url: str, request: object, head: Mapping[str, str]) -> Any:
    headers = {**_ONCE, **head}
    return urllib3.request("POST", url, json=request, headers=headers, timeout=120.0, retries=False).json()


def test_any_process_of_a_hub_may_be_killed_while_the_others_answer(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    agent.write_text(agent.read_text().replace("read_only", "expose=True, read_only"))
    with (
        program("hub", "--bare", "--processes", "2", "--port", str(port), cwd=tmp_path) as hub,
        program("serve", str(agent), cwd=tmp_path) as served,
    ):
        url = hub.url_in("hub at")
        served.wait_for("published")
        wait_until(lambda: set(_UP.findall(_metrics(url))) == {"0", "1"}, "both processes serve")
        address = State(retinue_home).read_hub()
        assert address is not None
        assert (address.pid, address.processes) == (hub.process.pid, 2)
        _calls(url, 20)
        # calls are counted in batches
        wait_until(lambda: _count_calls(url) == 20, "all are counted")
        fork_server = find_fork_server(hub.process.pid)
        serving = list_children(fork_server)
        assert len(serving) == 2
        for number, (leads, is_forked) in enumerate(((False, True), (True, True), (False, False)), 2):
            if not is_forked:
                kill(fork_server)
            leader = find_leader(retinue_home, serving)
            killed = leader if leads else (serving - {leader}).pop()
            if leads:
                execute(url, "start_run", {"workflow": _FLOW, "run": "kept"})
            kill(killed)
            # a busy machine starts the next process meanwhile
            assert max(_calls(url, 20)) < 20, "no call waits for the killed process"
            serving = wait_for_another(fork_server if is_forked else hub.process.pid, serving - {killed})
            stopwatch = Stopwatch()
            assert execute(url, "list_agents")["result"]["agents"][0]["name"] == "one-agent"
            stopwatch.check(10)
            _wait_for_calls(url, number * 20)
        wait_until(
            lambda: execute(url, "show_run", {"run": "kept"})["result"]["status"] == "done",
            "the next leader goes on with the run",
        )
        assert is_running(hub.process.pid)
        wait_until(lambda: set(_UP.findall(_metrics(url))) == {"0", "1"}, "both serve again", limit_s=180.0)
        left = serving | descendants(hub.process.pid)
        assert hub.end(signal.SIGTERM) == 0
        wait_until(lambda: not any(map(is_running, left)), "all of them have ended")
    assert not (retinue_home / "hub.json").exists()


def _count_calls(url: str) -> int:
    return sum(map(int, _AGENT_CALLS.findall(_metrics(url))))


def _wait_for_calls(url: str, count: int) -> None:
    wait_until(lambda: _count_calls(url) >= count, "calls of ended processes stay counted")


_ASKING = '''
from retinue import Agent
from retinue.authoring.context import Context

agent = Agent("asking", version="1.0.0")


@agent.skill(expose=True)
async def echo(text: str) -> str:
    """Gives back what it was given."""
    return text


@agent.skill(expose=True)
async def ask(ctx: Context) -> str:
    """Asks for a name."""
    reply = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
    return f"hello {reply['name']}"
'''
_LIMIT = """
@id("few") @effect("limit") @limit("5 per hour") @reason("few")
forbid(principal, action == Retinue::Action::"call", resource == Retinue::Skill::"asking/echo");
@id("no") @reason("never")
forbid(principal, action == Retinue::Action::"call", resource == Retinue::Skill::"asking/ask");
"""
_WITHOUT_POLICIES = {"RETINUE_POLICY__MODE": "off"}
"""For the agent, which has the state folder of the hub and would refuse a call that the hub lets through."""
_AT_AGENT = "/agents/asking/mcp"
_CLIENTS = 4
"""Connections that stay open; each process has some of them."""


def test_what_one_process_begins_any_other_goes_on_with(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    (tmp_path / "asking.py").write_text(_ASKING)
    with (
        program("hub", "--bare", "--processes", "2", "--port", str(port), cwd=tmp_path) as hub,
        program("serve", "asking.py", cwd=tmp_path, environment=_WITHOUT_POLICIES) as served,
    ):
        url = hub.url_in("hub at")
        served.wait_for("published")
        clients = [_Client(port) for _ in range(_CLIENTS)]
        wait_until(lambda: all(client.knows_agent() for client in clients), "all processes know the agent")
        # a suspended call goes on at any process
        for client, other in zip(clients, reversed(clients), strict=True):
            asked = client.call_tool("asking__ask", {}, can_be_asked=True)
            answer = {"action": "accept", "content": {"name": "Ada"}}
            responses = dict.fromkeys(asked["inputRequests"], answer)
            rest = {"requestState": asked["requestState"], "inputResponses": responses}
            done = other.call_tool("asking__ask", {}, can_be_asked=True, **rest)
            assert done["content"][0]["text"] == "hello Ada"
        # a session is that of any connection
        session = clients[0].open_session()
        for number, client in enumerate(clients, 1):
            assert client.call_in(session, number, "asking__echo", {"text": "a"})["content"][0]["text"] == "a"
        at_agent = clients[0].open_session(_AT_AGENT)
        # a call that a skill of the hub hands on belongs to its search, whichever process has it
        for client, other in zip(clients, reversed(clients), strict=True):
            found = client.call_tool("find_skills", {"query": f"gives back {uuid.uuid4().hex}"})
            search = json.loads(found["content"][0]["text"])["search"]
            named = {"skill": "echo", "agent": "asking", "search": search, "arguments": {"text": "a"}}
            assert other.call_tool("call_skill", named)["content"][0]["text"] == "a"
        wait_until(lambda: _count_history(url, retinue_home) == _CLIENTS, "the history knows the calls")
        # any process knows a task, and goes on with it
        for client, other in zip(clients, reversed(clients), strict=True):
            task = client.send_message("ask", {})
            assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            states = {each.a2a("GetTask", {"id": task["id"]})["status"]["state"] for each in clients}
            assert states == {"TASK_STATE_INPUT_REQUIRED"}
            assert other.send_message("", {"name": "Ada"}, taskId=task["id"])["id"] == task["id"]
        # a repeated message starts nothing, whichever process gets it
        same = {client.send_message("echo", {"text": "a"}, messageId="same")["id"] for client in clients}
        assert len(same) == 1
        # a limit of policies holds over the processes
        (retinue_home / "policies").mkdir()
        (retinue_home / "policies" / "few.cedar").write_text(_LIMIT)
        wait_until(
            lambda: all("never" in str(client.call_tool("asking__ask", {})) for client in clients),
            "all processes have the policies",
        )
        replies = [client.call_tool("asking__echo", {"text": "a"}) for client in clients * 3]
        assert sum(not reply.get("isError") for reply in replies) == 5
        wait_until(lambda: 'policy="few"} 12.0' in _metrics(url), "the leader has all decisions")
        # a revoked token is refused by all processes
        issued, token = TokenFile(retinue_home / "keys").issue(["mesh"], name="ci")
        wait_until(lambda: all(client.accepts(token) for client in clients), "all processes accept the token")
        TokenFile(retinue_home / "keys").revoke(issued.id)
        wait_until(lambda: not any(client.accepts(token) for client in clients), "no process accepts it")
        # the next leader goes on with a session
        fork_server = find_fork_server(hub.process.pid)
        kill(find_leader(retinue_home, list_children(fork_server)))
        again = _Client(port)
        assert "asking__echo" in {
            tool["name"] for tool in again.ask_in(session, 9, "tools/list", {})["tools"]
        }
        assert again.call_in(session, 10, "asking__echo", {"text": "a"})["isError"], "the limit still holds"
        assert "echo" in {
            tool["name"] for tool in again.ask_in(at_agent, 9, "tools/list", {}, _AT_AGENT)["tools"]
        }


def _count_history(url: str, home: Path) -> int:
    """How many calls the history has."""
    shown = execute(url, "show_history", token=State(home).local_token())["result"]
    return sum(row["calls"] for row in shown["skills"])


class _Client:
    """One connection to a hub, which stays with its process."""

    def __init__(self, port: int) -> None:
        self._pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=1, timeout=120.0, retries=False)

    def _post(self, path: str, request: object, head: Mapping[str, str]) -> Any:
        accept = {"accept": "application/json, text/event-stream"}
        reply = self._pool.request("POST", path, json=request, headers={**accept, **head})
        return reply, read_result(reply.data) if reply.data else None

    def knows_agent(self) -> bool:
        return "result" in self._call_tool("asking__echo", {"text": "a"}, {})

    def is_let_in(self) -> bool:
        """Whether the process of this connection answers a caller without a token."""
        request = {"jsonrpc": "2.0", "id": 1, "method": "wait", "params": {"name": "ready"}}
        reply, _ = self._post("/agents/waiting/execute", request, {})
        return bool(reply.status == 200 and "result" in reply.json())

    def accepts(self, token: str) -> bool:
        """Whether the process of this connection accepts a token."""
        request = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": "a"}}
        reply, _ = self._post("/agents/asking/execute", request, {"authorization": f"Bearer {token}"})
        assert reply.status in (200, 401, 403), reply.data
        return bool(reply.status != 401)

    def call_tool(
        self, name: str, arguments: object, *, can_be_asked: bool = False, **params: object
    ) -> dict[str, Any]:
        reply = self._call_tool(name, arguments, params, can_be_asked=can_be_asked)
        result: dict[str, Any] = reply["result"]
        return result

    def _call_tool(
        self, name: str, arguments: object, params: Mapping[str, object], *, can_be_asked: bool = False
    ) -> Any:
        prefix = "io.modelcontextprotocol/"
        meta = {
            f"{prefix}protocolVersion": "2026-07-28",
            f"{prefix}clientInfo": {"name": "test", "version": "1"},
            f"{prefix}clientCapabilities": {"elicitation": {"form": {}}} if can_be_asked else {},
        }
        head = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
        whole = {"name": name, "arguments": arguments, "_meta": meta, **params}
        return self._post("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": whole}, head)[
            1
        ]

    def open_session(self, path: str = "/mcp") -> str:
        version = "2025-11-25"
        params = {"protocolVersion": version, "capabilities": {}} | {
            "clientInfo": {"name": "test", "version": "1"}
        }
        opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        reply, _ = self._post(path, opening, {})
        session: str = reply.headers["mcp-session-id"]
        begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        self._post(path, begun, {"mcp-session-id": session, "mcp-protocol-version": version})
        return session

    def call_in(self, session: str, number: int, name: str, arguments: object) -> dict[str, Any]:
        return self.ask_in(session, number, "tools/call", {"name": name, "arguments": arguments})

    def ask_in(
        self, session: str, number: int, method: str, params: object, path: str = "/mcp"
    ) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        head = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        _, reply = self._post(path, request, head)
        assert "result" in reply, reply
        result: dict[str, Any] = reply["result"]
        return result

    def a2a(self, method: str, params: object) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        result: dict[str, Any] = self._post("/agents/asking", request, {"a2a-version": "1.0"})[1]["result"]
        return result

    def send_message(self, skill: str, arguments: object, **message: object) -> dict[str, Any]:
        parts = [{"data": {"skill": skill, "arguments": arguments} if skill else arguments}]
        whole = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": parts, **message}
        task: dict[str, Any] = self.a2a("SendMessage", {"message": whole})["task"]
        return task


_WAITING = """
import asyncio
from pathlib import Path

from retinue import Agent

agent = Agent("waiting", version="1.0.0")


@agent.skill(expose=True)
async def wait(name: str) -> str:
    \"\"\"Waits for a file beside this one.\"\"\"
    while not (Path(__file__).parent / name).exists():
        await asyncio.sleep(0.02)
    return name
"""
_NUMBER = re.compile(r'"process":(\d).*"event":"call"')
_IN_FLIGHT = re.compile(r"^retinue_calls_in_flight (\d+)", re.MULTILINE)
_SLOW = 8
"""Calls that run while the hub stops."""

_HALF = b"POST /agents/waiting/execute HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def test_half_requests_new_settings_and_a_stop_reach_all_processes_and_lose_no_call(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    (tmp_path / "waiting.py").write_text(_WAITING)
    (tmp_path / "ready").touch()
    settings = tmp_path / "retinue.toml"
    settings.write_text("")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    try:
        with (
            program("hub", "--bare", "--processes", "2", "--port", str(port), cwd=tmp_path) as hub,
            program("serve", "waiting.py", cwd=tmp_path) as served,
            ExitStack() as stack,
        ):
            url = hub.url_in("hub at")
            served.wait_for("published")
            wait_until(lambda: set(_UP.findall(_metrics(url))) == {"0", "1"}, "both processes serve")
            # clients that never end a request take a connection each, and no more
            for number in range(40):
                half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                half.sendall(_HALF[: 20 + number] if number % 2 else _HALF + b"content-length: 9\r\n\r\n{")
            wait_until(lambda: _wait(url, "ready").get("result") == "ready", "the agent is known")
            assert [_wait(url, "ready")["result"] for _ in range(20)] == ["ready"] * 20
            # the commands know the processes, and each line of the log has the number of its process
            picture = json.loads(run_command("top", "--json", cwd=tmp_path).stdout)
            assert (picture["processes"], picture["agents"][0]["name"]) == (2, "waiting")
            assert "2 processes that serve" in run_command("doctor", cwd=tmp_path).stdout
            # calls one after the other may all go to the process that has one half request less
            clients = [_Client(port) for _ in range(_CLIENTS)]
            assert all(client.is_let_in() for client in clients)
            wait_until(
                lambda: {"0", "1"} <= {str(number) for line in hub.lines for number in _NUMBER.findall(line)},
                "both processes have written lines",
            )
            # SIGHUP: every process refuses callers without a token
            settings.write_text("[auth]\nanonymous = false\n")
            hub.send(signal.SIGHUP)
            wait_until(lambda: not any(client.is_let_in() for client in clients), "no process lets them in")
            settings.write_text("")
            hub.send(signal.SIGHUP)
            wait_until(lambda: all(client.is_let_in() for client in clients), "all processes let them in")
            # SIGHUP reaches a process that starts, which here waits for the leader
            fork_server = find_fork_server(hub.process.pid)
            serving = list_children(fork_server)
            leader = find_leader(retinue_home, serving)
            freeze(leader, list_databases(retinue_home))
            kill((serving - {leader}).pop())
            (starting,) = wait_for_another(fork_server, {leader}) - {leader}
            wait_until(lambda: _has_read_settings(starting), "the process has read its settings")
            settings.write_text("[auth]\nanonymous = false\n")
            hub.send(signal.SIGHUP)
            os.kill(leader, signal.SIGCONT)
            token = State(retinue_home).local_token()
            wait_until(lambda: set(_UP.findall(_metrics(url, token))) == {"0", "1"}, "both serve again")
            clients = [_Client(port) for _ in range(_CLIENTS)]
            # all of them keep their connections, so that the process that started has some
            wait_until(lambda: not any(client.is_let_in() for client in clients), "it lets nobody in")
            settings.write_text("")
            hub.send(signal.SIGHUP)
            wait_until(lambda: all(client.is_let_in() for client in clients), "it lets them in again")
            # SIGTERM: calls that run are answered
            with ThreadPoolExecutor(_SLOW) as pool:
                calls = [pool.submit(_wait, url, "late") for _ in range(_SLOW)]
                wait_until(
                    lambda: int(_IN_FLIGHT.findall(_metrics(url))[0]) == _SLOW, "all calls are running"
                )
                hub.send(signal.SIGTERM)
                wait_until(lambda: _is_refused(port), "the hub stops")
                (tmp_path / "late").touch()
                assert [call.result()["result"] for call in calls] == ["late"] * _SLOW
            assert hub.wait() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def _wait(url: str, name: str) -> Any:
    request = {"jsonrpc": "2.0", "method": "wait", "id": 1, "params": {"name": name}}
    return _post(f"{url}/agents/waiting/execute", request, {})


def _has_read_settings(process: int) -> bool:
    """Whether a process of a hub has come so far that it shares memory with the others."""
    return " rw-s " in Path(f"/proc/{process}/maps").read_text()


def _is_refused(port: int) -> bool:
    """Whether a hub that stops refuses a new call."""
    request = {"jsonrpc": "2.0", "method": "wait", "id": 1, "params": {"name": "ready"}}
    url = f"http://127.0.0.1:{port}/agents/waiting/execute"
    try:
        reply = urllib3.request("POST", url, json=request, headers=_ONCE, timeout=2.0, retries=False)
    except urllib3.exceptions.HTTPError:
        return True
    return reply.status == 503
