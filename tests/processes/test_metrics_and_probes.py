"""Metrics and probes of hub, agents and workers as processes, with and without tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from retinue.storage.state import State
from tests.crash.postgres import Postgres
from tests.processes.commands import run_command
from tests.processes.inside import inside
from tests.processes.running import execute, program, wait_until, write_agent
from tests.time_bounds import Stopwatch

CLOSED = {"RETINUE_AUTH__ANONYMOUS": "false"}
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def get(url: str, token: str | None = None, **headers: str) -> urllib3.BaseHTTPResponse:
    sent = {**headers, **({"authorization": f"Bearer {token}"} if token else {})}
    return _http.request("GET", url, headers=sent)


def scrape(url: str, token: str | None = None) -> Samples:
    """Every sample of one scrape, read by the library of Prometheus."""
    reply = get(f"{url}/metrics", token)
    assert reply.status == 200, reply.data
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.data.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def ready(url: str, token: str | None = None) -> tuple[int, Any]:
    reply = get(f"{url}/ready", token)
    return reply.status, orjson.loads(reply.data)


def wait_for_value(url: str, number: float, name: str, **labels: str) -> None:
    wait_until(lambda: value(scrape(url), name, **labels) == number, f"{name} is {number}")


def wait_for_calls(url: str, count: int, **labels: str) -> None:
    wait_until(
        lambda: value(scrape(url), "retinue_calls_total", **labels) == count, f"{count} calls are counted"
    )


def wait_for_ready(url: str, status: str = "ready") -> None:
    expected = (503 if status == "not ready" else 200, {"status": status})
    wait_until(lambda: ready(url) == expected, f"{url} is {status}")


def wait_for_problem(url: str, token: str, what: str) -> None:
    wait_until(
        lambda: [one["what"] for one in ready(url, token)[1]["problems"]] == [what], f"{what} is named"
    )


def wait_for_text(url: str, text: str, token: str) -> None:
    wait_until(lambda: text in repr(scrape(url, token)), f"{text} is in the metrics")


def test_hub_agent_and_worker_count_what_they_do(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with inside("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        with (
            inside("serve", str(agent), cwd=tmp_path) as served,
            inside("worker", "--port", "0", cwd=tmp_path) as worker,
        ):
            served.wait_for("published")
            own, work = served.url_in("one-agent"), worker.url_in("worker at")
            for _ in range(3):
                assert execute(url, "who")["result"] == "one"
            execute(url, "nosuch")
            done = {"agent": "one-agent", "skill": "who", "endpoint": "execute", "outcome": "done"}
            for place in (url, own):
                wait_for_calls(place, 3, **done)
            samples = scrape(url)
            pair = {"agent": "one-agent", "skill": "who"}
            assert value(samples, "retinue_call_duration_seconds_count", **pair) == 3
            assert value(samples, "retinue_call_duration_seconds_bucket", **pair, le="+Inf") == 3
            # the refused call is counted with a batch of its own, the health by the next probe
            wait_for_value(url, 1, "retinue_call_errors_total", error="skill_not_offered")
            wait_for_value(url, 1, "retinue_agents", health="healthy")
            assert value(samples, "retinue_source_up", source="home") == 1
            assert value(samples, "retinue_calls_in_flight") == 0
            assert "nosuch" not in repr(samples)
            for place, kind in ((url, "hub"), (own, "agent"), (work, "worker")):
                found = [dict(labels) for name, labels in scrape(place) if name == "retinue_build_info"]
                assert [labels["process"] for labels in found] == [kind]
                wait_for_ready(place)
            assert get(f"{work}/health").status == 200
            assert get(f"{work}/execute").status == 404, "a worker takes no calls"
            steps = {"steps": [{"id": "a", "skill": "who"}], "name": "two", "version": "1.0.0"}
            assert "result" in execute(url, "orchestrate_workflow", {"workflow": steps, "input": {}})

            def has_run() -> bool:
                found = scrape(url)
                return (
                    value(found, "retinue_runs", status="done") == 1
                    and (value(found, "retinue_run_steps_total", outcome="done") or 0) >= 1
                    and value(found, "retinue_database_up") == 1
                    and (value(found, "retinue_lease_remaining_seconds") or 0) > 0
                )

            wait_until(has_run, "the run is counted")


def test_the_format_is_the_one_that_the_reader_asks_for(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with inside("serve", str(agent), "--no-publish", cwd=tmp_path) as served:
        url = served.url_in("one-agent")
        plain = get(f"{url}/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        wanted = get(f"{url}/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert wanted.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert wanted.data.endswith(b"# EOF\n")
        odd = get(f"{url}/metrics", accept="application/openmetrics-text; version=x")
        assert odd.status == 200
        assert odd.data.endswith(b"# EOF\n")


def test_where_a_token_is_required_metrics_want_it_and_probes_tell_the_status_only(
    tmp_path: Path, retinue_home: Path
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    wanted: list[tuple[Mapping[str, str], int]] = [
        (CLOSED, 401),
        ({**CLOSED, "RETINUE_METRICS__PUBLIC": "true"}, 200),
    ]
    for environment, status in wanted:
        with inside("serve", str(agent), "--no-publish", cwd=tmp_path, environment=environment) as served:
            url = served.url_in("one-agent")
            token = State(retinue_home).local_token()
            wait_for_ready(url)
            assert get(f"{url}/metrics").status == status
            assert get(f"{url}/metrics", "unknown").status == 401
            assert get(f"{url}/metrics", token).status == 200
            assert get(f"{url}/agent-card").status == 401
            assert get(f"{url}/health").status == 200
            assert ready(url) == (200, {"status": "ready"})
            assert ready(url, token) == (200, {"status": "ready", "problems": []})
            assert ready(url, "unknown")[0] == 401


def test_a_hidden_agent_is_in_the_metrics_of_nobody_who_may_not_see_it(
    tmp_path: Path, retinue_home: Path
) -> None:
    agent = write_agent(tmp_path, "secret-agent", "1.0.0", "whisper", "psst")
    hides = {"RETINUE_ACCESS": '{"secret-agent": {"receive": ["local"]}}'}
    with inside("hub", "--bare", "--port", "0", cwd=tmp_path, environment=hides) as hub:
        url = hub.url_in("hub at")
        with inside("serve", str(agent), cwd=tmp_path, environment=hides) as served:
            served.wait_for("published")
            token = State(retinue_home).local_token()
            assert execute(url, "whisper", token=token)["result"] == "psst"
            for place in (url, served.url_in("secret-agent")):
                wait_for_text(place, "whisper", token)
                shown = repr(scrape(place))
                assert "whisper" not in shown
                assert "secret" not in shown
                assert "'other'" in shown


def test_ready_names_the_source_and_the_child_that_are_missing(tmp_path: Path, retinue_home: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit(3)\n")
    settings = '[[agents]]\ntarget = "broken.py"\n[timeouts]\nregistry_s = 1\n'
    (tmp_path / "retinue.toml").write_text(f'registries = ["http://127.0.0.1:9"]\n{settings}')
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        token = State(retinue_home).local_token()
        expected = {("child", "broken.py"), ("source", "http://127.0.0.1:9")}

        def are_named() -> bool:
            # the source fails before the hub has started the child
            problems = ready(url, token)[1]["problems"]
            return {(one["what"], one.get("name")) for one in problems} == expected

        wait_until(are_named, "both are named")
        status, shown = ready(url, token)
        assert (status, shown["status"]) == (200, "degraded"), "the hub serves all the same"
        assert all(one["reason"] for one in shown["problems"])
        samples = scrape(url)
        assert value(samples, "retinue_ready") == 0.5
        assert value(samples, "retinue_child_up", child="broken.py") == 0
        assert value(samples, "retinue_source_up", source="http://127.0.0.1:9") == 0


def test_ready_fails_while_postgres_is_away_and_health_does_not(tmp_path: Path, retinue_home: Path) -> None:
    postgres = Postgres()
    try:
        database = {"RETINUE_DATABASE": postgres.create_database()}
        with (
            program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=database) as hub,
            program("worker", "--port", "0", cwd=tmp_path, environment=database) as worker,
        ):
            places = hub.url_in("hub at"), worker.url_in("worker at")
            for url in places:
                wait_for_ready(url)
            postgres.stop()
            token = State(retinue_home).local_token()
            for url in places:
                wait_for_ready(url, "not ready")
                # the run engine, which was perhaps still starting, may have noticed it before
                wait_for_problem(url, token, "database")
                (problem,) = ready(url, token)[1]["problems"]
                assert "does not answer" in problem["reason"]
                assert get(f"{url}/health").status == 200
                assert value(scrape(url), "retinue_database_up") == 0
                assert value(scrape(url), "retinue_ready") == 0
            postgres.start()
            for url in places:
                wait_for_ready(url)
    finally:
        postgres.close()


def examine(cwd: Path, environment: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    done = run_command("doctor", "--json", cwd=cwd, environment=environment)
    return done.returncode, {row["check"]: row for row in orjson.loads(done.stdout)["checks"]}


def test_doctor_and_commands_say_soon_that_postgres_is_away(tmp_path: Path) -> None:
    postgres = Postgres()
    try:
        environment = {**CLOSED, "RETINUE_DATABASE": postgres.create_database()}
        with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=environment) as hub:
            url = hub.url_in("hub at")
            wait_for_ready(url)
            settings = {**environment, "RETINUE_HUB__PORT": url.rpartition(":")[2]}
            code, checks = examine(tmp_path, settings)
            assert code == 0
            assert checks["ready"]["found"] == "the hub is ready"
            assert "answers; 1 nodes" in checks["runs"]["found"]
            assert checks[f"port {url.rpartition(':')[2]}"]["found"] == "used by the hub"
            assert "port 9000" not in checks
            postgres.stop()
            wait_for_ready(url, "not ready")
            code, checks = examine(tmp_path, settings)
            assert code == 1
            assert checks["ready"]["status"] == checks["runs"]["status"] == "fail"
            assert "database" in checks["ready"]["found"]
            assert "does not answer" in checks["runs"]["found"]
            assert "the hub is not ready" in checks["ready"]["found"]
            stopwatch = Stopwatch()
            done = run_command("runs", cwd=tmp_path, environment=environment)
            assert done.returncode != 0
            assert "the database of the runs does not answer" in done.stderr
            stopwatch.check(15)
    finally:
        postgres.close()


def test_a_database_of_another_kind_is_refused_at_start(tmp_path: Path) -> None:
    refused = run_command("hub", "--bare", "--database", "mysql://x", cwd=tmp_path)
    assert refused.returncode != 0
    assert "postgresql://user@host/name" in refused.stderr
