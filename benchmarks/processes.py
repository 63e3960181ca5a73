"""A hub of one process, one of two, and proxies, before an agent with a fixed answer: rate, CPU, latency.

The load is `wrk` and the agent is nginx where they are installed (`scripts/services bench`), else one small
process each. The proxies are nginx and a bare forwarder in Python under uvicorn. All run all the time and are
loaded in turn, so that a busy machine is as busy for each. At the end each process of the hub of two is
frozen and killed. The CPU is that of all processes of a hub; the best of the rounds counts. Calls in sessions
of MCP use any connection for any session, so that half of them come to a process that does not have the
session.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import orjson
import urllib3

from benchmarks.figures import Figure, cpu_s_of
from benchmarks.hub_load import Calls, fixed_agent, load, proxy
from benchmarks.mcp_hub_processes import program, retinue, wait_until_served

CONNECTIONS = (1, 16, 64, 256)
ROUNDS = 3
PROCESSES = (1, 2)

CPU_SHARE = 1.1
"""The CPU of a call at two processes, as a share of that at one."""

RATE_SHARE = 1 / 1.45
"""The calls a second at one process, as a share of those at two, where two cores have load and agent, too."""

FORWARDER_SHARE = 1.5
"""The CPU of a call through the hub, as a share of that through the forwarder."""

FORWARDER = "bare forwarder"

CALLERS_AT_ONCE = 8
FROZEN_S = 2.0

AGENT = '''
from retinue import Agent

agent = Agent("echo-agent", version="1.0.0")


@agent.skill(expose=True)
async def echo(text: str) -> str:
    """Gives back what it was given."""
    return text
'''
TOOL = "echo-agent__echo"
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
SESSIONS = 32

EXECUTE = "/execute"
MODERN_CALL = f"tools/call of {MODERN}"
SESSION_CALL = f"tools/call of {HANDSHAKE}"
WAYS = (EXECUTE, MODERN_CALL, SESSION_CALL)

_JSON = {"content-type": "application/json"}
_ACCEPT = {**_JSON, "accept": "application/json, text/event-stream"}
_PREFIX = "io.modelcontextprotocol/"
_CLIENT = {"name": "bench", "version": "1"}


@dataclass(frozen=True)
class Subject:
    """A hub, or a proxy beside it: its processes are ``pid`` and those below it."""

    name: str
    url: str
    pid: int
    calls: Mapping[str, Calls]


def measure() -> list[Figure]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="processes-")))
        subjects = _open_subjects(stack, folder)
        for subject in subjects:
            for calls in subject.calls.values():
                load(subject.url, 16, calls, folder)
        rounds = [
            {
                (way, clients, subject.name): _measure(subject, clients, way, folder)
                for way in WAYS
                for clients in CONNECTIONS
                for subject in subjects
                if way in subject.calls
            }
            for _ in range(ROUNDS)
        ]
        best = {place: _best([round_[place] for round_ in rounds]) for place in rounds[0]}
        figures = [figure for place, values in best.items() for figure in _list_figures(place, values)]
        for way in WAYS:
            for clients in CONNECTIONS:
                figures += _compare(way, clients, best)
        figures += _measure_kills(subjects[-1])
    figures.append(Figure("load of the machine at the end", os.getloadavg()[0], ""))
    return figures


def _open_subjects(stack: ExitStack, folder: Path) -> list[Subject]:
    """Proxies, and the hubs with 1 and 2 processes, before one agent."""
    (folder / "echo_agent.py").write_text(AGENT, encoding="utf-8")
    agent = stack.enter_context(fixed_agent(folder))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
    hubs = []
    for count in PROCESSES:
        home = {**kept, "RETINUE_HOME": str(folder / f"state-{count}"), "RETINUE_HUB__MODELS": "[]"}
        command = ["hub", "--bare", "--processes", str(count)]
        url, pid = stack.enter_context(retinue(command, home, folder, "/health"))
        serve = ["serve", "echo_agent.py", "--advertise", agent]
        stack.enter_context(retinue(serve, home, folder, "/health"))
        wait_until_served(f"{url}/agents/echo-agent/agent-card")
        time.sleep(1)  # until the process that does not lead has heard of the agent
        hubs.append(Subject(_name_hub(count), url, pid, _make_calls(url)))
    execute = {EXECUTE: hubs[0].calls[EXECUTE]}
    forwarder = stack.enter_context(program(["-m", "benchmarks.mcp_hub_servers", "forwarder", agent]))
    proxies = [Subject(FORWARDER, *forwarder, execute)]
    if (plain := stack.enter_context(proxy(folder, agent))) is not None:
        proxies.insert(0, Subject("nginx proxy_pass", *plain, execute))
    return [*proxies, *hubs]


def _name_hub(count: int) -> str:
    return f"hub of {count} process{'es' * (count > 1)}"


def _list_figures(place: tuple[str, int, str], values: Mapping[str, float]) -> list[Figure]:
    way, clients, name = place
    where = f"{way}, {name}, {clients} connections"
    return [
        Figure(f"calls a second, {where}", values["rate"], "/s"),
        Figure(f"CPU per call, {where}", values["cpu_us"], "µs"),
        Figure(f"p50, {where}", values["p50_ms"], "ms"),
        Figure(f"p99, {where}", values["p99_ms"], "ms"),
        Figure(f"slowest call, {where}", values["max_ms"], "ms"),
        *(Figure(f"{kind} calls, {where}", values[kind], "") for kind in ("slow", "failed") if values[kind]),
    ]


def _compare(
    way: str, clients: int, best: Mapping[tuple[str, int, str], Mapping[str, float]]
) -> list[Figure]:
    one, two = (best[way, clients, _name_hub(count)] for count in PROCESSES)
    where = f"{way}, {clients} connections"
    share, rates = two["cpu_us"] / one["cpu_us"], one["rate"] / two["rate"]
    rate_target = RATE_SHARE if clients > 1 else None
    figures = [
        Figure(f"CPU per call, 2 processes / 1, {where}", share, "×", target=CPU_SHARE),
        Figure(f"calls a second, 1 process / 2, {where}", rates, "×", target=rate_target),
    ]
    if (forwarder := best.get((way, clients, FORWARDER))) is not None:
        times = one["cpu_us"] / forwarder["cpu_us"]
        figures.append(Figure(f"CPU per call, hub / forwarder, {where}", times, "×", target=FORWARDER_SHARE))
    return figures


def _measure_kills(hub: Subject) -> list[Figure]:
    """Freeze and kill each process in turn: how long no call is answered, and how long the leader is away."""
    gaps_s: dict[int, list[float]] = {signal.SIGSTOP: [], signal.SIGKILL: []}
    away_s = []
    for number in range(2):
        (fork_server,) = _list_children(hub.pid)
        process = sorted(_list_children(fork_server))[number]
        with _calling(hub, gaps_s[signal.SIGSTOP]):
            os.kill(process, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            os.kill(process, signal.SIGCONT)
        with _calling(hub, gaps_s[signal.SIGKILL]):
            os.kill(process, signal.SIGKILL)
            began = time.monotonic()
            urllib3.request("GET", f"{hub.url}/ready", headers={"connection": "close"}, retries=5)
            away_s.append(time.monotonic() - began)
            time.sleep(1.5)  # a process that has run for a second is started again at once
    gap = "longest time without an answered call, a process"
    return [
        Figure(f"{gap} killed", max(gaps_s[signal.SIGKILL]), "s", target=0.1),
        Figure(f"{gap} frozen for {FROZEN_S:g} s", max(gaps_s[signal.SIGSTOP]), "s", target=0.1),
        Figure("until the next leader answers, a process killed", max(away_s), "s", target=3.0),
    ]


@contextlib.contextmanager
def _calling(hub: Subject, gaps_s: list[float]) -> Iterator[None]:
    """Several callers while inside, because one waits for a process that does not answer."""
    answered, ended = [time.monotonic()], threading.Event()
    callers = [
        threading.Thread(target=_call_until, args=(hub, answered, ended)) for _ in range(CALLERS_AT_ONCE)
    ]
    for caller in callers:
        caller.start()
    time.sleep(0.5)
    yield
    ended.set()
    for caller in callers:
        caller.join()
    gaps_s.append(max(later - earlier for earlier, later in itertools.pairwise(sorted(answered))))


def _call_until(hub: Subject, answered: list[float], ended: threading.Event) -> None:
    """Call over new connections; ``answered`` gets the time of each answer. A killed process loses calls."""
    calls = hub.calls[EXECUTE]
    headers = {**calls.headers, "connection": "close"}
    while not ended.is_set():
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            reply = urllib3.request(
                "POST", hub.url + calls.path, body=calls.body, headers=headers, retries=False
            )
            if reply.status == 200:
                answered.append(time.monotonic())


def _make_calls(url: str) -> dict[str, Calls]:
    """The calls of each way; sessions are opened over connections of their own."""
    meta = {
        f"{_PREFIX}protocolVersion": MODERN,
        f"{_PREFIX}clientInfo": _CLIENT,
        f"{_PREFIX}clientCapabilities": {},
    }
    params = {"name": TOOL, "arguments": {"text": "hello"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    modern = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": TOOL}
    execute = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": "hello"}})
    body = orjson.dumps({**request, "params": {**params, "_meta": meta}})
    sessions = [_open_session(url) for _ in range(SESSIONS)]
    return {
        EXECUTE: Calls("/agents/echo-agent/execute", execute, _JSON),
        MODERN_CALL: Calls("/mcp", body, {**_ACCEPT, **modern}),
        SESSION_CALL: Calls(
            "/mcp", orjson.dumps(request), {**_ACCEPT, "mcp-protocol-version": HANDSHAKE}, sessions
        ),
    }


def _open_session(url: str) -> str:
    params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
    opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    headers = {**_ACCEPT, "mcp-protocol-version": HANDSHAKE}
    session: str = urllib3.request("POST", f"{url}/mcp", json=opening, headers=headers, timeout=30).headers[
        "mcp-session-id"
    ]
    begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    urllib3.request("POST", f"{url}/mcp", json=begun, headers={**headers, "mcp-session-id": session})
    return session


def _measure(subject: Subject, clients: int, way: str, folder: Path) -> dict[str, float]:
    pids = [subject.pid, *_list_descendants(subject.pid)]
    before = sum(map(cpu_s_of, pids))
    result = load(subject.url, clients, subject.calls[way], folder)
    spent_s = sum(map(cpu_s_of, pids)) - before
    return {**result, "cpu_us": 1e6 * spent_s / result["calls"]}


def _list_descendants(pid: int) -> list[int]:
    children = _list_children(pid)
    return [*children, *(each for child in children for each in _list_descendants(child))]


def _list_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _best(results: list[dict[str, float]]) -> dict[str, float]:
    """The best value of each figure: the highest rate, the lowest of the others."""
    return {name: (max if name == "rate" else min)(result[name] for result in results) for name in results[0]}
