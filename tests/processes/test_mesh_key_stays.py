"""The mesh key is asked for at every endpoint, and looked for in whatever a mesh shows and writes."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from retinue.storage.mesh_key import mesh_key
from retinue.storage.state import State
from tests.processes.commands import retinue, run_command
from tests.processes.fuzz_attacks import encode, fill, fill_bytes
from tests.processes.fuzzing import Attacked, attacked_processes
from tests.processes.running import Program, descendants, execute, program, wait_until, write_agent
from tests.processes.secret_forms import find_secret

ANSWER_S = 0.5
"""How long a stream without an end is read."""

PLACES = ("keys/mesh.key", "../keys/mesh.key", "../../keys/mesh.key", "../../../keys/mesh.key")
PATHS = (
    "/{place}",
    "/v2/{place}",
    "/v2/agents/{place}",
    "/v2/agents/echo/manifests/{place}",
    "/v2/agents/echo/blobs/{place}",
    "/v2/agents/echo/blobs/uploads/{place}",
    "/ui/static/{place}",
    "/ui/agents/{place}",
    "/ui/runs/{place}",
    "/ui/workflows/{place}",
    "/ui/workflows/new/draft?from={place}",
    "/agents/{place}/agent-card",
    "/agents/{place}/.well-known/agent-card.json",
    "/resources/read/{place}",
    "/resources/read/file:{place}",
)
SKILLS: tuple[tuple[str, str], ...] = (
    ("show_agent", "name"),
    ("show_run", "run"),
    ("resume_run", "run"),
    ("show_trace", "trace"),
    ("orchestrate_workflow", "workflow"),
    ("start_run", "workflow"),
    ("check_workflow", "text"),
    ("find_skills", "query"),
    ("list_calls", "agent"),
)
"""Skills of the hub with an argument that names something stored."""

COMMANDS = (
    ("doctor", "--json"),
    ("status", "--json"),
    ("top", "--json"),
    ("agents", "--json"),
    ("show", "echo-agent"),
    ("token", "list", "--json"),
    ("token", "new"),
    ("keys", "--json"),
    ("imports", "--json"),
    ("runs", "--json"),
    ("workflows", "--json"),
    ("connect", "claude", "--print"),
    ("connect", "claude", "--print", "--stdio"),
    ("logs", "--json"),
)


def ask(url: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """All that a server answers to one request, of a stream what comes at once; the path is sent as it is."""
    parts = urlsplit(url)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()
    answer = bytearray()
    with socket.create_connection((str(parts.hostname), parts.port or 80), timeout=120) as connection:
        connection.sendall(head + body)
        # the first request of a protocol may load what it needs; its end is the end of a stream, too
        with contextlib.suppress(TimeoutError, ConnectionError):
            while chunk := connection.recv(65536):
                answer += chunk
                connection.settimeout(ANSWER_S)
    return bytes(answer)


def list_answers(one: Attacked) -> Iterator[tuple[str, bytes]]:
    """What each endpoint answers to the bearer of the state token, who may do most."""
    known = one.fuzz.learner.learn()
    bearer = {"authorization": f"Bearer {one.fuzz.token}", "accept": "application/json, text/event-stream"}
    for target in one.fuzz.targets:
        headers = bearer | {"content-type": target.media_type}
        headers |= {
            name.lower(): value
            for name, _, value in (fill(line, known).partition(": ") for line in target.headers)
        }
        for body in target.bodies:
            sent = fill_bytes(encode(target, body), known)
            path = fill(target.path, known)
            yield f"{target.method} {path} {sent[:200]!r}", ask(one.url, target.method, path, headers, sent)
    for place in PLACES:
        for written in (place, place.replace("/", "%2f"), place.replace("..", "%2e%2e")):
            for pattern in PATHS:
                path = pattern.format(place=written)
                yield f"GET {path}", ask(one.url, "GET", path, bearer, b"")
        for skill, argument in SKILLS:
            call = {"jsonrpc": "2.0", "id": 1, "method": skill, "params": {argument: place}}
            json = bearer | {"content-type": "application/json"}
            yield f"{skill} {place}", ask(one.url, "POST", "/execute", json, orjson.dumps(call))


def list_files(folder: Path, but: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != but:
            yield str(path.relative_to(folder)), path.read_bytes()


def list_environments(running: Program) -> Iterator[tuple[str, bytes]]:
    """The environment and the command line of every process that a program has started."""
    for pid in descendants(running.process.pid):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                yield f"{name} of {pid}", Path(f"/proc/{pid}/{name}").read_bytes()


@pytest.mark.timeout(600)
def test_no_endpoint_command_log_or_other_file_shows_the_mesh_key(tmp_path: Path, retinue_home: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with attacked_processes(work, retinue_home) as processes:
        state = State(retinue_home)
        key = mesh_key(state.keys)
        count = 0
        for one in processes.values():
            for what, answer in list_answers(one):
                assert find_secret(key, answer) is None, what
                count += answer.startswith(b"HTTP/1.1 200")
        assert count > 100, "the endpoints were reached"
        for command in COMMANDS:
            said = retinue(*command, cwd=work, environment={"RETINUE_DEBUG": "1"})
            assert find_secret(key, said.encode()) is None, command
        for what, text in list_files(retinue_home, state.keys / "mesh.key"):
            assert find_secret(key, text) is None, what
        # the two texts that hold it, which also shows that it would be found
        join = retinue("token", "new", "--join", cwd=work)
        assert find_secret(key, join.encode()) is not None
        retinue("backup", str(tmp_path / "copy"), cwd=work)
        copied = tmp_path / "copy" / "keys" / "mesh.key"
        assert copied.read_bytes() == key
        assert copied.stat().st_mode & 0o077 == 0
        for what, text in list_files(tmp_path / "copy", copied):
            assert find_secret(key, text) is None, what
    for one in processes.values():
        assert find_secret(key, one.running.output.encode()) is None
    for what, text in list_files(work, state.keys):
        assert find_secret(key, text) is None, what


@pytest.mark.timeout(600)
def test_a_process_that_joins_hands_its_join_token_to_no_child_and_no_log(
    tmp_path: Path, retinue_home: Path
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    server = [sys.executable, "-m", "tests.mcp.upstream.foreign_server", "plain"]
    far = tmp_path / "far"
    far.mkdir()
    (far / "retinue.toml").write_text(
        f"[[agents]]\ntarget = {orjson.dumps(str(agent)).decode()}\n\n"
        f"[imports.loud]\ncommand = {orjson.dumps(server[0]).decode()}\n"
        f"args = {orjson.dumps(server[1:]).decode()}\n"
        f"folder = {orjson.dumps(str(Path(__file__).resolve().parents[2])).decode()}\n"
    )
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as near:
        url = near.url_in("hub at")
        key = mesh_key(State(retinue_home).keys)
        join = retinue("token", "new", "--join", "--name", "far", cwd=tmp_path)
        home = tmp_path / "far-home"
        environment = {"RETINUE_HOME": str(home), "RETINUE_JOIN": join}
        arguments = ("hub", "--bare", "--port", "0", "--join", url)
        with program(*arguments, cwd=far, environment=environment) as joined:
            here = joined.url_in("hub at")
            token = State(home).local_token()
            wait_until(lambda: execute(here, "who", token=token).get("result") == "one", "its agent runs")
            shout = {"text": "a"}
            wait_until(lambda: "result" in execute(here, "shout", shout, token=token), "its server runs")
            assert mesh_key(State(home).keys) == key
            seen = dict(list_environments(joined))
            assert len(seen) >= 4, "the agent and the server have processes"
            for what, text in seen.items():
                assert join.encode() not in text, what
                assert find_secret(key, text) is None, what
            for what, text in list_files(home, State(home).keys / "mesh.key"):
                assert find_secret(key, text) is None, what
        assert join not in joined.output + near.output
        assert find_secret(key, (joined.output + near.output).encode()) is None


@pytest.mark.parametrize("damage", ["cut", "not text"])
def test_an_error_about_the_mesh_key_quotes_nothing_of_it(
    tmp_path: Path, retinue_home: Path, damage: str
) -> None:
    key = mesh_key(State(retinue_home).keys)
    part = key[:24]
    (retinue_home / "keys" / "mesh.key").write_bytes(part if damage == "cut" else key + b"\xff")
    for command in (("doctor",), ("agents",), ("token", "new", "--join"), ("hub", "--bare", "--port", "0")):
        done = run_command(*command, cwd=tmp_path, environment={"RETINUE_DEBUG": "1"})
        assert done.returncode != 0, command
        assert "mesh.key" in done.stdout + done.stderr, command
        assert find_secret(part, (done.stdout + done.stderr).encode()) is None, command
