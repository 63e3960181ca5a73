"""Lists the files of Retinue that run in a hub between the first and the last byte of one warm call.

python scripts/call_path.py [--list] [PATH …]   PATH: execute, mcp, relay, workflow, …; without PATH: all

The hub is started through the command line's entry point with a profile hook, the agent in a process of
its own without one; the calls go over real sockets. The installed ``retinue`` is counted, so that a copy of
this script in another checkout counts that checkout. Only the standard library is needed here.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

Json = dict[str, Any]
Files = dict[str, dict[str, int]]
"""File below ``src/retinue`` → function → how often it was entered or resumed; in the order of entry."""

CONTROL = "CALL_PATH_CONTROL"
"""The file descriptor of the traced process to which ``begin`` and ``end`` are sent."""
WARM_CALLS = 20
COUNTED_CALLS = 5
START_S = 60.0
OBSERVED_AFTER_S = 3600.0
"""Longer than all counted calls take."""
LOOK_S = 60.0
"""Longer than the counted calls of a path take."""
MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
WORKFLOW: Json = {"name": "one-step", "steps": [{"id": "say", "skill": "echo"}]}

AGENT = '''
from retinue import Agent

agent = Agent("echo-agent", version="1.0.0")


@agent.skill(expose=True)
async def echo(text: str) -> dict[str, str]:
    """Returns its input."""
    return {"text": text}
'''


# In the traced process


class Recorder:
    """Counts entered frames of Retinue's files while it is on, in every thread."""

    def __init__(self, package: str) -> None:
        self._prefix = package + os.sep
        self._files: Files = {}
        self._on = False

    def install(self) -> None:
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)

    def begin(self) -> None:
        self._files = {}
        self._on = True

    def end(self) -> Files:
        self._on = False
        return self._files

    def _enter(self, frame: FrameType, event: str, _: object) -> None:
        if self._on and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(self._prefix):
                file = name[len(self._prefix) :]
                functions = self._files.setdefault(file, {})
                function = frame.f_code.co_qualname
                functions[function] = functions.get(function, 0) + 1


def run_traced(arguments: list[str]) -> None:
    """Run the command line with a recorder that obeys the control socket."""
    import retinue

    recorder = Recorder(str(Path(retinue.__file__).parent))
    control = socket.socket(fileno=int(os.environ.pop(CONTROL)))
    threading.Thread(target=_obey, args=(recorder, control), daemon=True).start()
    recorder.install()
    sys.argv = ["retinue", *arguments]
    from retinue.cli.program import main
    from retinue.mesh.directory import source_set
    from retinue.mesh.observing import events
    from retinue.runtime.parts import children
    from retinue.runtime.parts.teams import rollouts

    # Observers get the events of a call some ms after its beginning: a call is counted without them on a fast
    # machine and with them on a slow one. So they wait here until the hub stops.
    events.BATCH_S = OBSERVED_AFTER_S
    # For the same reason the directory looks for changes of its sources less often: at most one call looks.
    source_set.LOOK_S = LOOK_S
    # What looks for changes of teams would run in each counted call: the pauses of the calls are as long.
    children.TEAMS_LOOK_S = rollouts.LOOK_S = LOOK_S
    main()


def _obey(recorder: Recorder, control: socket.socket) -> None:
    with control, control.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            files: Files = {}
            if line == "begin\n":
                recorder.begin()
            else:
                files = recorder.end()
            print(json.dumps(files), file=lines, flush=True)


# In the process that calls


class Hub:
    """A traced hub and one agent, in a state folder of their own."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="call-path-")))
        (folder / "echo_agent.py").write_text(AGENT, encoding="utf-8")
        self.log = folder / "log"
        self.port = find_free_port()
        own, its = socket.socketpair()
        stack.enter_context(own)
        self._control = stack.enter_context(own.makefile("rw", encoding="utf-8"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
        environment["RETINUE_HOME"] = str(folder / "state")
        with its:
            command = [sys.executable, __file__, "--traced", "hub", "--bare", "--port", str(self.port)]
            traced = {**environment, CONTROL: str(its.fileno())}
            stack.enter_context(self._run(command, traced, folder, pass_fds=(its.fileno(),)))
        wait_until(lambda: self._is_served("/health"), self.log)
        command = [sys.executable, "-m", "retinue", "serve", "echo_agent.py", "--port", str(find_free_port())]
        stack.enter_context(self._run(command, environment, folder))
        wait_until(lambda: self._is_served("/agents/echo-agent/agent-card"), self.log)
        self._connection = stack.enter_context(
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30))
        )

    @contextlib.contextmanager
    def _run(
        self, command: list[str], environment: dict[str, str], folder: Path, **options: Any
    ) -> Iterator[None]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=log, stderr=log, **options
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def _is_served(self, path: str) -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
            try:
                connection.request("GET", path)
                return connection.getresponse().status == 200
            except ConnectionError:
                return False

    def post(self, path: str, message: Json, headers: dict[str, str]) -> tuple[Json, http.client.HTTPMessage]:
        """The JSON of the answer, which may be the last event of a stream."""
        headers = {"content-type": "application/json", **headers}
        self._connection.request("POST", path, json.dumps(message), headers)
        reply = self._connection.getresponse()
        body = reply.read().decode()
        events = [line.removeprefix("data:") for line in body.splitlines() if line.startswith("data:")]
        found = json.loads((events[-1] if events else body) or "{}")
        if reply.status not in (200, 202) or "error" in found or found.get("result", {}).get("isError"):
            raise RuntimeError(f"{path}: {reply.status} {body}")
        return found, reply.headers

    def record(self, work: Callable[[], object]) -> Files:
        """The files that run in the hub in each of some calls, after some that are not counted.

        A file that ran in one call but not in another belongs to a periodic task, not to the call. So every
        second call follows another one at once, as in traffic.
        """
        for _ in range(WARM_CALLS):
            work()
        rounds = []
        for number in range(COUNTED_CALLS):
            # what the last call left to be done after its answer
            time.sleep(0.2)
            if number % 2:
                work()
            self._tell("begin")
            work()
            rounds.append(self._tell("end"))
        shared = set.intersection(*(set(one) for one in rounds))
        return {file: functions for file, functions in rounds[-1].items() if file in shared}

    def _tell(self, line: str) -> Any:
        print(line, file=self._control, flush=True)
        return json.loads(self._control.readline())


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until(is_true: Callable[[], bool], log: Path) -> None:
    until = time.monotonic() + START_S
    while not is_true():
        if time.monotonic() > until:
            raise RuntimeError(f"did not start:\n{log.read_text(encoding='utf-8')}")
        time.sleep(0.05)


def open_execute(hub: Hub) -> Callable[[], object]:
    """A skill of the agent through the hub's ``/execute``."""
    message = request("echo", {"text": "hello"})
    return lambda: hub.post("/execute", message, {})


def open_workflow(hub: Hub) -> Callable[[], object]:
    """A durable run of one step, waited for."""
    message = request("orchestrate_workflow", {"workflow": WORKFLOW, "input": {"text": "hello"}})
    return lambda: hub.post("/execute", message, {})


def open_mcp(hub: Hub) -> Callable[[], object]:
    """A tools/call at the hub's own MCP endpoint."""
    return open_tool(hub, "/mcp", MODERN)


def open_mcp_session(hub: Hub) -> Callable[[], object]:
    """The same in a session, as clients of the handshake protocol versions have it."""
    return open_tool(hub, "/mcp", HANDSHAKE)


def open_relay(hub: Hub) -> Callable[[], object]:
    """A tools/call to the agent's MCP endpoint through the hub."""
    return open_tool(hub, "/agents/echo-agent/mcp", MODERN)


def open_relay_session(hub: Hub) -> Callable[[], object]:
    """The same in a session."""
    return open_tool(hub, "/agents/echo-agent/mcp", HANDSHAKE)


def open_tool(hub: Hub, path: str, version: str) -> Callable[[], object]:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
    if version == HANDSHAKE:
        begin = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        _, replied = hub.post(path, request("initialize", begin), headers)
        headers["mcp-session-id"] = replied["mcp-session-id"]
        hub.post(path, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    listed, _ = hub.post(path, *modern("tools/list", {}, headers))
    name = next(tool["name"] for tool in listed["result"]["tools"] if tool["name"].endswith("echo"))
    message, headers = modern("tools/call", {"name": name, "arguments": {"text": "hello"}}, headers)
    return lambda: hub.post(path, message, headers)


def modern(method: str, params: Json, headers: dict[str, str]) -> tuple[Json, dict[str, str]]:
    """A request with what 2026-07-28 wants of it; in a session as it is."""
    if "mcp-session-id" in headers:
        return request(method, params), headers
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }
    named = {"mcp-name": params["name"]} if "name" in params else {}
    return request(method, {**params, "_meta": meta}), {**headers, "mcp-method": method, **named}


def request(method: str, params: Json) -> Json:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


PATHS: dict[str, Callable[[Hub], Callable[[], object]]] = {
    "execute": open_execute,
    "mcp": open_mcp,
    "mcp-session": open_mcp_session,
    "relay": open_relay,
    "relay-session": open_relay_session,
    "workflow": open_workflow,
}


def main(arguments: Iterable[str]) -> int:
    """Print a line for each path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", choices=[*PATHS, []], metavar="PATH", help=", ".join(PATHS))
    parser.add_argument(
        "--list", action="store_true", help="also print the files and functions, in the order of entry"
    )
    given = parser.parse_args(list(arguments))
    with contextlib.ExitStack() as stack:
        hub = Hub(stack)
        for name in given.paths or PATHS:
            files = hub.record(PATHS[name](hub))
            frames = sum(sum(functions.values()) for functions in files.values())
            print(f"{name:<14} {len(files):4} files {frames:6} frames", flush=True)
            if given.list:
                print("\n".join(f"  {file}: {describe(found)}" for file, found in files.items()), flush=True)
    return 0


def describe(functions: dict[str, int]) -> str:
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in functions.items())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--traced"]:
        run_traced(sys.argv[2:])
    sys.exit(main(sys.argv[1:]))
