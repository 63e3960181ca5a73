"""The manifests of Kubernetes: valid, restricted, and their containers started here as processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import urllib3
from ruamel.yaml import YAML

from tests.deploy.services import (
    DEPLOY,
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

FOLDER = DEPLOY / "kubernetes"
EXAMPLE = FOLDER / "secret.yaml.example"
FILES = (*sorted(FOLDER.glob("*.yaml")), EXAMPLE)
VERSION = "1.37"
DATABASE = "postgresql://USER:PASSWORD@HOST/NAME?sslmode=require"
JOIN = "JOIN-TOKEN"
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))


def read_documents(kind: str) -> Iterator[dict[str, Any]]:
    for file in FILES:
        yield from (one for one in YAML(typ="safe").load_all(file) if one["kind"] == kind)


def read_pods() -> dict[str, dict[str, Any]]:
    """The specification of each pod, by the name of its container."""
    found = [*read_documents("StatefulSet"), *read_documents("Deployment")]
    pods = [one["spec"]["template"]["spec"] for one in found]
    return {pod["containers"][0]["name"]: pod for pod in pods}


def read_secrets() -> dict[tuple[str, str], str]:
    return {
        (secret["metadata"]["name"], key): value
        for secret in read_documents("Secret")
        for key, value in secret["stringData"].items()
    }


def make_service(name: str) -> Service:
    (container,) = read_pods()[name]["containers"]
    secrets, given = read_secrets(), image_environment()
    for row in container["env"]:
        source = row.get("valueFrom", {}).get("secretKeyRef")
        given[row["name"]] = row["value"] if source is None else secrets[source["name"], source["key"]]
    (port,) = container["ports"]
    probe = container["readinessProbe"]["httpGet"]
    assert probe["port"] == port["name"]
    return Service(
        name, tuple(container["args"]), given, f"http://127.0.0.1:{port['containerPort']}{probe['path']}"
    )


PODS = sorted(read_pods())


def validate(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kubernetes_validate", "-k", VERSION, "--strict", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.soak
def test_the_schemas_of_kubernetes_accept_every_manifest_and_find_a_misspelt_key(tmp_path: Path) -> None:
    assert find_spec("kubernetes_validate"), "its schemas are missing; run scripts/bootstrap test deploy"
    for file in FILES:
        assert (done := validate(file)).returncode == 0, done.stdout + done.stderr
    broken = tmp_path / "hub.yaml"
    broken.write_text((FOLDER / "hub.yaml").read_text("utf-8").replace("readinessProbe", "readynessProbe"))
    assert validate(broken).returncode != 0


def test_pods_are_a_hub_and_workers_and_the_workers_stay_when_nodes_are_drained() -> None:
    assert PODS == ["hub", "worker"]
    (deployment,) = read_documents("Deployment")
    (budget,) = read_documents("PodDisruptionBudget")
    assert deployment["spec"]["replicas"] > budget["spec"]["minAvailable"] >= 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("name", PODS)
def test_a_pod_keeps_the_standard_restricted_and_writes_to_volumes_only(name: str) -> None:
    pod = read_pods()[name]
    (container,) = pod["containers"]
    assert pod["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 65532}.items()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert mounts == {"/var/lib/retinue", "/tmp"}
    home = make_service(name).environment["RETINUE_HOME"]
    assert Path(home).parent == Path("/var/lib/retinue"), "a folder of ours, with our rights"


@pytest.mark.parametrize("name", PODS)
def test_every_option_and_variable_of_a_pod_exists(name: str) -> None:
    service = make_service(name)
    check_options(service.arguments)
    assert list_unknown_variables(service.environment) == []


def test_the_service_leads_to_the_hub_and_the_workers_join_it_there() -> None:
    (service,) = read_documents("Service")
    (hub,) = read_documents("StatefulSet")
    assert service["spec"]["selector"].items() <= hub["spec"]["template"]["metadata"]["labels"].items()
    url = f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert url in make_service("hub").arguments
    assert url in make_service("worker").arguments


@pytest.mark.timeout(600)
def test_the_pods_started_as_processes_are_ready_and_share_the_database(tmp_path: Path) -> None:
    ports = {"9000": str(reserve_port()), "9100": str(reserve_port())}
    places = {f"retinue-hub:{shown}": f"127.0.0.1:{real}" for shown, real in ports.items()}
    assert {*read_secrets().values()} == {DATABASE, JOIN}

    def service(name: str, shared: dict[str, str]) -> Service:
        return make_service(name).at({**places, **ports, **shared})

    with ExitStack() as running:
        url = running.enter_context(postgres_with_password())
        shared = {DATABASE: url.replace("retinue@", f"retinue:{PASSWORD}@")}
        hub = service("hub", shared)
        started = [running.enter_context(hub.started(tmp_path))]
        hub.wait(started[0])
        shared[JOIN] = hub.type(tmp_path, "token", "new", "--join", "--name", "workers")
        worker = service("worker", shared)
        started.append(running.enter_context(worker.started(tmp_path)))
        worker.wait(started[1])
        for one in (hub, worker):
            (container,) = read_pods()[one.name]["containers"]
            base = (one.probe or "").removesuffix("/ready")
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                reply = _http.request("GET", f"{base}{container[kind]['httpGet']['path']}")
                assert reply.status == 200, (one.name, kind)
        token = hub.state(tmp_path).local_token()
        wait_until(lambda: count_nodes(f"http://127.0.0.1:{ports['9000']}", token) == 2, "two nodes")
        assert [one.end(signal.SIGTERM) for one in reversed(started)] == [0, 0]
