"""The dashboard and the alerts of ``deploy``: every expression parsed, and asked of a live Prometheus."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import urllib3
from ruamel.yaml import YAML

from retinue.mesh.observing.metrics import METRICS
from scripts.grafana_dashboard import PAGE, render_dashboard
from tests.llm.programs import answer, write_program
from tests.ports import reserve_port
from tests.processes.running import execute, program, wait_until, write_agent
from tests.processes.test_import_process import SERVER
from tests.services import get_program

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
OF_OTHERS = {
    "up",
    "process_open_fds",
    "process_max_fds",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
}
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))


def read_panels() -> list[tuple[str, str]]:
    panels = json.loads(PAGE.read_text("utf-8"))["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]


def read_alerts() -> list[tuple[str, str]]:
    groups = YAML(typ="safe").load(PROMETHEUS / "rules.yml")["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def as_query(expression: str) -> str:
    """An expression of a panel as Grafana sends it."""
    return expression.replace("$__rate_interval", "20s")


def list_selectors(expression: str) -> list[str]:
    """The instant selectors of an expression."""
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(str(node))
        elif isinstance(node, promql.MatrixSelector):
            walk(node.vector_selector)
        elif isinstance(node, promql.BinaryExpr):
            walk(node.lhs)
            walk(node.rhs)
        elif isinstance(node, promql.Call):
            for one in node.args:
                walk(one)
        elif isinstance(node, promql.AggregateExpr | promql.ParenExpr | promql.UnaryExpr):
            walk(node.expr)
        else:
            assert isinstance(node, promql.NumberLiteral), type(node)

    walk(promql.parse(expression))
    return found


def metric_of(name: str) -> str:
    for suffix in ("_bucket", "_count", "_sum"):
        if name.removesuffix(suffix) in METRICS:
            return name.removesuffix(suffix)
    return name


def test_the_dashboard_is_the_one_that_the_script_writes() -> None:
    assert PAGE.read_text("utf-8") == render_dashboard(), "run: python -m scripts.grafana_dashboard"


def test_every_expression_parses_and_names_metrics_and_labels_that_exist() -> None:
    """By a parser of PromQL, so that it holds where there is no Prometheus."""
    named: set[str] = set()
    for title, expression in [*read_panels(), *read_alerts()]:
        selectors = list_selectors(as_query(expression))
        assert selectors, title
        for selector in selectors:
            name, _, matchers = selector.partition("{")
            metric = metric_of(name)
            named.add(metric)
            assert metric in METRICS or metric in OF_OTHERS, (title, name)
            if metric in METRICS:
                known = {*METRICS[metric].labels, "kind", "job", "instance", "le"}
                assert set(re.findall(r"(\w+)\s*[!=]=?~?\"", matchers)) <= known, (title, selector)
    assert named >= METRICS.keys() - {"retinue_messages_total"}, "each is in a panel or an alert"


def test_the_parser_refuses_an_expression_that_is_broken() -> None:
    with pytest.raises(ValueError, match=r"."):
        promql.parse("sum(rate(retinue_calls_total[5m])")


def test_promtool_accepts_configuration_and_rules_and_their_unit_tests_pass(tmp_path: Path) -> None:
    promtool = get_program("promtool")
    for name in ("prometheus.yml", "rules.yml", "rules_test.yml"):
        (tmp_path / name).write_bytes((PROMETHEUS / name).read_bytes())
    (tmp_path / "prometheus.token").write_text("token")
    for arguments in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ):
        done = subprocess.run(
            [promtool, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "rules.yml").write_text((tmp_path / "rules.yml").read_text().replace("> 800", "> > 800"))
    broken = subprocess.run(
        [promtool, "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, check=False
    )
    assert broken.returncode != 0, "it would have found a mistake"


@contextmanager
def prometheus(folder: Path, targets: dict[str, str]) -> Iterator[str]:
    """A Prometheus that scrapes once a second; the configuration is that of ``deploy``, with our targets."""
    server = get_program("prometheus")
    config = YAML(typ="safe").load(PROMETHEUS / "prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / "rules.yml")]
    (job,) = config["scrape_configs"]
    del job["authorization"]
    job["static_configs"] = [
        {"targets": [url.removeprefix("http://")], "labels": {"kind": kind}} for kind, url in targets.items()
    ]
    with (folder / "prometheus.yml").open("w") as file:
        YAML().dump(config, file)
    address = f"127.0.0.1:{reserve_port()}"
    log = (folder / "prometheus.log").open("w")
    process = subprocess.Popen(
        [
            server,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def ask(url: str, expression: str) -> list[Any]:
    reply = _http.request("GET", f"{url}/api/v1/query", fields={"query": expression})
    answer = json.loads(reply.data)
    assert answer["status"] == "success", (expression, answer)
    found: list[Any] = answer["data"]["result"]
    return found


def test_every_expression_finds_something_in_a_live_mesh(tmp_path: Path) -> None:
    get_program("prometheus")
    write_program(tmp_path / "bin", "claude", answer("claude", "hello"))
    plan = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    child = write_agent(tmp_path, "child-agent", "1.0.0", "what", "child")
    (tmp_path / "retinue.toml").write_text(
        f'[[agents]]\ntarget = "{child}"\n'
        '[llm.mine]\nprovider = "anthropic"\nbackend = "command"\ncommand = "claude"\n'
        f"[imports.foreign]\ncommand = {json.dumps(SERVER[0])}\nargs = {json.dumps(list(SERVER[1:]))}\n"
        f"folder = {json.dumps(str(ROOT))}\n"
    )
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    environment["RETINUE_HUB__MODELS"] = '["mine"]'
    with ExitStack() as stack:

        def start(*arguments: str) -> Any:
            return stack.enter_context(program(*arguments, cwd=tmp_path, environment=environment))

        hub = start("hub", "--bare", "--port", "0")
        url = hub.url_in("hub at")
        served, worker = start("serve", str(plan)), start("worker", "--port", "0")
        served.wait_for("published")
        targets = {"hub": url, "agent": served.url_in("one-agent"), "worker": worker.url_in("worker at")}
        hub.wait_for("exposed to MCP clients")
        hub.wait_for("mine at")  # where it starts slowly, it is there after the others
        monitor = stack.enter_context(prometheus(tmp_path, targets))
        dying = start("serve", str(write_agent(tmp_path, "dying-agent", "1.0.0", "die", "x")))
        dying.wait_for("published")
        dying.send(signal.SIGKILL)
        dying.wait()
        definition = {"name": "two", "version": "1.0.0", "steps": [{"id": "a", "skill": "who"}]}
        mine = next(
            skill
            for row in execute(url, "list_agents", {"detailed": True})["result"]["agents"]
            if row["name"] == "mine"
            for skill in [row["skills"][0] if isinstance(row["skills"][0], str) else row["skills"][0]["id"]]
        )

        def work() -> None:
            execute(url, "who")
            execute(url, "who", {"nosuch": 1})
            execute(url, "die")
            execute(f"{url}/agents/mine", mine, {"prompt": "hi"})
            execute(url, "orchestrate_workflow", {"workflow": definition, "input": {}})

        queries = [(title, as_query(expression)) for title, expression in read_panels()]
        # an alert finds nothing while all is well, so its series are looked for
        for title, expression in read_alerts():
            # a hub with one process has no figure of its processes
            found = [one for one in list_selectors(expression) if "retinue_hub_process_up" not in one]
            queries += [(title, f"last_over_time({one}[5m])") for one in found]
        missing = queries

        def is_complete() -> bool:
            nonlocal missing
            work()
            missing = [(title, query) for title, query in missing if not ask(monitor, query)]
            return not missing

        try:
            wait_until(is_complete, "all expressions", limit_s=180)
        except AssertionError:
            pytest.fail(
                f"nothing found for {missing}\n{_http.request('GET', f'{url}/metrics').data.decode()}"
            )
        alerts = json.loads(_http.request("GET", f"{monitor}/api/v1/rules").data)["data"]["groups"][0][
            "rules"
        ]
        assert [rule["name"] for rule in alerts if rule["health"] == "err"] == []
