"""The compose file: valid, closed to others, and started here with a real Postgres and registry."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.deploy.services import (
    DEPLOY,
    FLOW,
    PASSWORD,
    Service,
    check_options,
    count_nodes,
    image_environment,
    list_unknown_variables,
    postgres_with_password,
)
from tests.ports import reserve_port
from tests.processes.running import wait_until
from tests.registry.places import BCRYPT_OF_PASSWORD
from tests.registry.token_server import PASSWORD as REGISTRY_PASSWORD
from tests.services import docker_registry

FILE = DEPLOY / "compose" / "compose.yaml"
EXAMPLE = DEPLOY / "compose" / ".env.example"
SECRETS = {"POSTGRES_PASSWORD": PASSWORD, "REGISTRY_PASSWORD": REGISTRY_PASSWORD}
PORTS = {"hub": 9000, "worker-1": 9100, "worker-2": 9100, "plan-agent": 8001}
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def fill(value: Any, variables: Mapping[str, str]) -> Any:
    """The file with its variables filled in as compose does; KeyError for a required one that is not set."""
    if isinstance(value, dict):
        return {key: fill(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [fill(one, variables) for one in value]
    if not isinstance(value, str):
        return value

    def of(found: re.Match[str]) -> str:
        name, kind, default = found.groups()
        if given := variables.get(name):
            return given
        if kind == "-":
            return str(default)
        raise KeyError(name)

    return _VARIABLE.sub(of, value)


def read_services(variables: Mapping[str, str] = SECRETS) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = fill(YAML(typ="safe").load(FILE), variables)["services"]
    return found


def is_ours(row: Mapping[str, Any]) -> bool:
    return "retinue" in row["image"]


def make_service(name: str, row: Mapping[str, Any]) -> Service:
    (probed,) = re.findall(r"'(http://[^']+)'", row["healthcheck"]["test"][-1])
    return Service(
        name, tuple(row["command"]), {**image_environment(), **row["environment"]}, probe=str(probed)
    )


OURS = sorted(name for name, row in read_services().items() if is_ours(row))


def test_it_has_the_services_that_its_page_promises() -> None:
    assert sorted(read_services()) == ["hub", "plan-agent", "postgres", "registry", "worker-1", "worker-2"]
    assert sorted(PORTS) == OURS


def test_the_schema_of_compose_accepts_it_and_finds_a_misspelt_key(tmp_path: Path) -> None:
    def check(file: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
        return subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)

    assert (done := check(FILE)).returncode == 0, done.stdout
    broken = tmp_path / "compose.yaml"
    broken.write_text(FILE.read_text("utf-8").replace("cap_drop:", "cap_drops:"), "utf-8")
    assert "cap_drops" in check(broken).stdout


@pytest.mark.parametrize("name", OURS)
def test_every_option_and_variable_of_a_service_exists(name: str) -> None:
    service = make_service(name, read_services()[name])
    check_options(service.arguments)
    assert list_unknown_variables(service.environment) == []


def test_an_option_or_a_variable_that_does_not_exist_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        check_options(["hub", "--bear"])
    assert list_unknown_variables({"RETINUE_HUBB__PORT": "1", "RETINUE_REGISTRY__TEAM__MESH": "true"}) == [
        "RETINUE_HUBB__PORT"
    ]


@pytest.mark.parametrize("name", sorted(read_services()))
def test_every_service_is_confined_and_reached_from_this_machine_only(name: str) -> None:
    row = read_services()[name]
    assert row["read_only"] is True
    assert row["cap_drop"] == ["ALL"]
    assert row["security_opt"] == ["no-new-privileges:true"]
    assert row["healthcheck"]["test"][0] == "CMD"
    assert all(port.startswith("127.0.0.1:") for port in row.get("ports", ()))
    assert "privileged" not in row
    assert "network_mode" not in row
    if is_ours(row):
        assert row["user"] == "65532:65532"
        assert [place.partition(":") for place in row["volumes"]] == [(name, ":", "/var/lib/retinue")]
        assert image_environment()["RETINUE_AUTH__ANONYMOUS"] == "false"
    else:
        assert "ports" not in row, "only the hub is published"


def test_no_password_is_in_the_files_and_none_has_a_default() -> None:
    for missing in SECRETS:
        with pytest.raises(KeyError, match=missing):
            read_services({name: value for name, value in SECRETS.items() if name != missing})
    example = dict(
        line.split("=", 1) for line in EXAMPLE.read_text().splitlines() if re.match(r"[A-Z_]+=", line)
    )
    assert example == {"POSTGRES_PASSWORD": "", "REGISTRY_PASSWORD": "", "RETINUE_JOIN": ""}


@pytest.mark.timeout(600)
def test_the_file_started_as_processes_runs_a_workflow_on_three_nodes(tmp_path: Path) -> None:
    rows = read_services()
    places = {name: reserve_port() for name in OURS}
    others = {f"{name}:{port}": f"127.0.0.1:{places[name]}" for name, port in PORTS.items()}
    (tmp_path / "htpasswd").write_text(f"retinue:{BCRYPT_OF_PASSWORD}\n")
    (tmp_path / "flow.yaml").write_text(FLOW)

    def service(name: str) -> Service:
        port, real = str(PORTS[name]), str(places[name])
        own = {f"127.0.0.1:{port}": f"127.0.0.1:{real}", port: real, f"--port={port}": f"--port={real}"}
        found = make_service(name, rows[name]).at({**others, **shared})
        words = tuple(own.get(word, word) for word in found.arguments)
        probe = (found.probe or "").replace(f"127.0.0.1:{port}", f"127.0.0.1:{real}")
        return Service(name, words, found.environment, probe)

    with ExitStack() as running:
        database = running.enter_context(postgres_with_password())
        settings = rows["registry"]["environment"]
        assert settings["REGISTRY_AUTH"] == "htpasswd"
        realm = settings["REGISTRY_AUTH_HTPASSWD_REALM"]
        auth = f"{{htpasswd: {{realm: {realm}, path: '{tmp_path}/htpasswd'}}}}"
        registry = running.enter_context(docker_registry(tmp_path, auth=auth))
        shared = {
            "postgresql://retinue@postgres/retinue": database,
            "registry:5000": registry.removeprefix("http://"),
        }
        hub = service("hub")
        join = hub.type(tmp_path, "token", "new", "--join", "--name", "compose")
        processes = [running.enter_context(hub.started(tmp_path))]
        hub.wait(processes[0])
        rows = read_services({**SECRETS, "RETINUE_JOIN": join})
        members = [service(name) for name in ("worker-1", "worker-2", "plan-agent")]
        processes += [running.enter_context(member.started(tmp_path)) for member in members]
        for member, process in zip(members, processes[1:], strict=True):
            member.wait(process)
        url = f"http://127.0.0.1:{places['hub']}"
        token = hub.state(tmp_path).local_token()
        wait_until(lambda: count_nodes(url, token) == 3, "hub and workers share the database")
        # one of the nodes asks the agent within the interval of probes, and tells the others
        wait_until(lambda: "available" in hub.type(tmp_path, "agents"), "the agent is known to be available")
        assert "textwrap" in hub.type(tmp_path, "run", "flow.yaml", "{}", "--id", "first")
        assert "done" in members[0].type(tmp_path, "runs", "first")
        assert [process.end(signal.SIGTERM) for process in reversed(processes)] == [0] * 4


def test_a_worker_without_a_join_token_says_what_is_missing(tmp_path: Path) -> None:
    worker = make_service("worker-1", read_services()["worker-1"])
    done = subprocess.run(
        [sys.executable, "-m", "retinue", *worker.arguments],
        cwd=tmp_path,
        env={**os.environ, **worker.given(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "retinue token new --join" in done.stderr
