"""Resident memory of the programs of a small mesh."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from retinue.storage.state import State
from tests.processes.running import execute, program, write_agent

AGENT_MB, HUB_MB = 120, 172
"""What an agent with one trivial skill and a hub once needed."""

AT_ONCE = 16
LONG_QUERY_BYTES = 60_000
"""Of a url that is just within limits.head_bytes."""

RECORDED_CALLS = 1_100
"""More than the overview of the dashboard reads."""


@contextmanager
def hub_and_clients(folder: Path) -> Iterator[tuple[int, str, ThreadPoolExecutor]]:
    """A hub that would accept tokens of an authorization server, as all its routes are there then."""
    servers = {"RETINUE_AUTH__AUTHORIZATION_SERVERS": '["http://127.0.0.1:9/"]'}
    with (
        program("hub", "--bare", "--port", "0", cwd=folder, environment=servers, cold=True) as hub,
        ThreadPoolExecutor(AT_ONCE) as clients,
    ):
        yield hub.process.pid, hub.url_in("hub at"), clients


def read_rss_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def test_an_agent_and_a_hub_need_less_memory_than_they_once_did(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path, cold=True) as hub,
        program("serve", str(agent), cwd=tmp_path, cold=True) as served,
    ):
        url = hub.url_in("hub at")
        served.wait_for("published")
        for _ in range(20):
            assert execute(url, "who")["result"] == "one"
        assert read_rss_mb(served.process.pid) < 0.85 * AGENT_MB
        assert read_rss_mb(hub.process.pid) < 0.85 * HUB_MB


@pytest.mark.parametrize("path", ["/ui/sign-in", "/.well-known/oauth-protected-resource"])
def test_a_hub_does_not_keep_the_long_urls_of_requests_without_a_token(tmp_path: Path, path: str) -> None:
    with hub_and_clients(tmp_path) as (pid, url, _):
        http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))

        def ask(number: int) -> None:
            filler = f"{number}-".ljust(LONG_QUERY_BYTES, "q")
            assert http.request("GET", f"{url}{path}?{filler}").status == 200

        for number in range(2):
            ask(number)
        before = read_rss_mb(pid)
        for number in range(2, 802):
            ask(number)
        # their urls have 48 MB; what the hub still loads after its start is within the limit
        assert read_rss_mb(pid) - before < 16


def test_overviews_asked_for_at_once_need_about_the_memory_of_one(tmp_path: Path, retinue_home: Path) -> None:
    with hub_and_clients(tmp_path) as (pid, url, clients):
        token = State(retinue_home).local_token()
        http = urllib3.PoolManager(retries=False, maxsize=AT_ONCE, timeout=urllib3.Timeout(60.0))
        headers = {"authorization": f"Bearer {token}", "accept": "text/html"}

        def look(_: int) -> None:
            assert http.request("GET", f"{url}/", headers=headers).status == 200

        for _ in range(RECORDED_CALLS):
            execute(url, "map_agents", token=token)
        for number in range(4):
            look(number)
        before = read_rss_mb(pid)
        list(clients.map(look, range(4 * AT_ONCE)))
        assert read_rss_mb(pid) - before < 10


def test_a_hub_does_not_keep_the_globs_that_callers_send(tmp_path: Path, retinue_home: Path) -> None:
    token = State(retinue_home).local_token()
    with hub_and_clients(tmp_path) as (pid, url, _):
        http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))

        def ask(number: int, length: int) -> int:
            globs = " ".join(f"agent:{number}-{one}".ljust(length, "?") for one in range(40_000 // length))
            headers = {"authorization": f"Bearer {token}", "x-retinue-rights": f"mesh {globs}"}
            return http.request("GET", f"{url}/agents/none/agent-card", headers=headers).status

        for number in range(20):
            assert ask(number, 200) == 404
        before = read_rss_mb(pid)
        for number in range(20, 120):
            assert ask(number, 200) == 404
            assert ask(number, 40_000) == 403
        assert read_rss_mb(pid) - before < 12


def test_the_audit_log_of_a_hub_does_not_grow_by_the_names_that_callers_send(
    tmp_path: Path, retinue_home: Path
) -> None:
    with hub_and_clients(tmp_path) as (_, url, _):
        for number in range(50):
            assert "error" in execute(url, f"{number}".ljust(200_000, "x"))
    assert sum(one.stat().st_size for one in retinue_home.rglob("*.db*")) < 1024 * 1024
