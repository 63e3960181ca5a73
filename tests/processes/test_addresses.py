"""Advertised addresses, path prefixes and proxies that terminate TLS, with a reverse proxy of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from retinue.storage.state import State
from tests.processes.commands import retinue, run_command
from tests.processes.inside import inside
from tests.processes.proxying import Proxy, make_certificate, proxying
from tests.processes.running import execute, program, wait_until, write_agent
from tests.processes.test_access_process import CLOSED
from tests.requirements import requirement

FORWARDED = {
    "X-Forwarded-Host": "{host}",
    "X-Forwarded-Proto": "{scheme}",
    "X-Forwarded-For": "203.0.113.9",
}
TRUSTED = {"RETINUE_DOORS__PROXIES": '["127.0.0.1/32"]'}
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))


def rows(url: str, token: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = execute(url, "list_agents", {"detailed": True}, token)["result"]["agents"]
    return found


@pytest.mark.parametrize("strips", [True, False], ids=["the proxy strips the prefix", "and leaves it"])
def test_an_agent_behind_a_path_prefix_is_published_called_and_probed_there(
    tmp_path: Path, strips: bool
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    often = {"RETINUE_DIRECTORY__REFRESH_S": "0.5"}
    with (
        proxying(Proxy("/mesh/one", strips=strips)) as proxy,
        inside("hub", "--bare", "--port", "0", cwd=tmp_path, environment=often) as hub,
        inside("serve", str(agent), "--advertise", f"{proxy.url}/", cwd=tmp_path) as served,
    ):
        url = hub.url_in("hub at")
        proxy.upstream = served.url_in("one-agent")
        served.wait_for("published")
        assert f"advertised as {proxy.url}" in served.output
        wait_until(lambda: "/mesh/one/agent-card" in proxy.seen, "the probe takes the way through the proxy")
        assert execute(url, "who")["result"] == "one"
        assert "/mesh/one/execute" in proxy.seen, "the call too"
        (row,) = rows(url)
        assert row["status"] == "available"
        card = orjson.loads(_http.request("GET", f"{proxy.url}/agent-card").data)
        assert proxy.url in repr(card)
        # who reaches the agent directly is served as before
        assert execute(proxy.upstream, "who")["result"] == "one"


@requirement("W-24")
def test_a_mesh_with_tokens_works_through_a_proxy_that_terminates_tls_and_rewrites_the_host(
    tmp_path: Path, retinue_home: Path
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    certificate = make_certificate(tmp_path)
    environment = {**CLOSED, **TRUSTED, "SSL_CERT_FILE": str(certificate[0])}
    with (
        proxying(Proxy("/a", tells=FORWARDED), certificate) as proxy,
        program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=environment) as hub,
        program(
            "serve", str(agent), "--advertise", proxy.url, cwd=tmp_path, environment=environment
        ) as served,
    ):
        url = hub.url_in("hub at")
        proxy.upstream = served.url_in("one-agent")
        served.wait_for("published")
        token = State(retinue_home).local_token()
        assert execute(url, "who", token=token)["result"] == "one"
        assert "/a/execute" in proxy.seen
        assert execute(url, "who")["error"]["code"] == -33001
        with urllib3.PoolManager(ca_certs=str(certificate[0])) as trusting:
            message = {"performative": "QUERY_CAPABILITIES", "payload": {"query_type": "summary"}}
            headers = {"authorization": f"Bearer {token}", "connection": "close"}
            reply = trusting.request("POST", f"{proxy.url}/messages", json=message, headers=headers)
        assert proxy.url.startswith("https://")
        assert reply.json()["performative"] == "INFORM_CAPABILITIES"


@pytest.mark.parametrize("added", [{}, {"x-forwarded-for": "203.0.113.9"}], ids=["", "with X-Forwarded-For"])
def test_the_headers_of_a_proxy_count_where_it_is_named_and_only_there(
    tmp_path: Path, added: dict[str, str]
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    for environment, status in (({}, 200), (TRUSTED, 403)):
        with inside("serve", str(agent), "--no-publish", cwd=tmp_path, environment=environment) as served:
            url = served.url_in("one-agent")
            # a Host that is refused: it is looked at only where the proxy is trusted
            evil = {**added, "x-forwarded-host": "evil.example"}
            reply = _http.request("GET", f"{url}/agent-card", headers=evil)
            assert reply.status == status
            prefixed = {**added, "x-forwarded-prefix": "/p", "x-forwarded-host": "localhost"}
            reply = _http.request("GET", f"{url}/p/agent-card", headers=prefixed)
            assert reply.status == (404 if status == 200 else 200)


def test_a_hub_behind_a_prefix_is_a_registry_and_a_mesh_for_others(
    tmp_path: Path, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with (
        proxying(Proxy("/retinue", keeps_host=True)) as proxy,
        inside(
            "hub", "--bare", "--port", "0", "--advertise", proxy.url, cwd=tmp_path, environment=CLOSED
        ) as hub,
    ):
        proxy.upstream = hub.url_in("hub at")
        join = retinue("token", "new", "--join", cwd=tmp_path)
        other = {**CLOSED, "RETINUE_HOME": str(tmp_path / "other-home"), "RETINUE_JOIN": join}
        with inside("serve", str(agent), "--join", proxy.url, cwd=tmp_path, environment=other) as served:
            served.wait_for("published")
            assert any(path.startswith("/retinue/v2/agents/one") for path in proxy.seen)
            token = State(retinue_home).local_token()
            assert execute(proxy.url, "who", token=token)["result"] == "one"
            assert execute(proxy.upstream, "who", token=token)["result"] == "one"
            assert [row["name"] for row in rows(proxy.url, token)] == ["one-agent"]
            card = _http.request(
                "GET", f"{proxy.url}/agent-card", headers={"authorization": f"Bearer {token}"}
            )
            assert proxy.url in card.data.decode()
            assert served.end() == 0


def test_the_hub_passes_the_address_of_an_agent_on_to_it(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with proxying(Proxy("/one")) as proxy:
        table = {"target": str(agent), "advertise": proxy.url}
        started = {"RETINUE_AGENTS": orjson.dumps([table]).decode()}
        with inside("hub", "--bare", "--port", "0", cwd=tmp_path, environment=started) as hub:
            proxy.upstream = hub.url_in("one-agent at")
            url = hub.url_in("hub at")
            hub.wait_for("1 agents")
            assert execute(url, "who")["result"] == "one"
            assert "/one/execute" in proxy.seen


def test_a_worker_is_probed_and_scraped_at_its_advertised_address(tmp_path: Path, retinue_home: Path) -> None:
    with (
        proxying(Proxy("/worker/one", strips=False)) as proxy,
        inside("worker", "--port", "0", "--advertise", proxy.url, cwd=tmp_path, environment=CLOSED) as worker,
    ):
        proxy.upstream = worker.url_in("worker at")
        worker.wait_for(f"advertised as {proxy.url}")
        headers = {"authorization": f"Bearer {State(retinue_home).local_token()}"}
        for url in (proxy.url, proxy.upstream):
            assert _http.request("GET", f"{url}/health").status == 200
            assert _http.request("GET", f"{url}/metrics").status == 401
            metrics = _http.request("GET", f"{url}/metrics", headers=headers)
            assert metrics.status == 200
            assert b"retinue_ready" in metrics.data
        assert "/worker/one/metrics" in proxy.seen


@pytest.mark.parametrize("by", ["option", "setting"])
def test_a_worker_without_a_port_refuses_an_address_to_advertise(tmp_path: Path, by: str) -> None:
    url = "https://worker.example"
    given = ("--advertise", url) if by == "option" else ()
    environment = {} if by == "option" else {"RETINUE_WORKER__ADVERTISE": url}
    refused = run_command("worker", *given, cwd=tmp_path, environment=environment)
    assert refused.returncode != 0
    assert "serves nothing" in refused.stderr
    assert "--port" in refused.stderr


@pytest.mark.parametrize(
    "text", ["mesh.example", "ftp://mesh.example", "https://", "https://u:p@mesh.example", "http://0.0.0.0:1"]
)
def test_an_address_that_nobody_can_use_is_refused_before_anything_starts(tmp_path: Path, text: str) -> None:
    refused = run_command("hub", "--bare", "--advertise", text, cwd=tmp_path)
    assert refused.returncode != 0
    assert "--advertise" in refused.stderr
    assert len(refused.stdout.splitlines() + refused.stderr.splitlines()) <= 2
    refused = run_command("hub", "--bare", cwd=tmp_path, environment={"RETINUE_HUB__ADVERTISE": text})
    assert refused.returncode != 0
    assert "RETINUE_HUB__ADVERTISE" in refused.stderr
