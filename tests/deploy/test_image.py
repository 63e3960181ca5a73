"""The image runs a hub without root, and an import that npx starts; the units do both under a systemd.

Needs root and the programs of ``scripts/services soak``. All is in a folder of its own and removed again.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3

from retinue.storage.state import State
from tests.deploy.image import (
    USER,
    Container,
    Images,
    Root,
    bind_files,
    build_image,
    confine,
    derive,
    run,
    unpack,
)
from tests.deploy.services import DEPLOY
from tests.docs.pages import ROOT, list_sections
from tests.ports import reserve_port
from tests.processes.running import execute, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
THOUGHT = {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
SERVER = json.loads((ROOT / "tests" / "interop" / "npm" / "package.json").read_text())["dependencies"]
NPX = ("npx", "-y", "@modelcontextprotocol/server-sequential-thinking")
PACKAGE = f"{NPX[-1]}@{SERVER[NPX[-1]]}"
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))


@dataclass(frozen=True, slots=True)
class Built:
    """The image of the repository in a buildah of its own."""

    images: Images
    folder: Path
    image: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    if os.geteuid() != 0:
        pytest.skip("NOT CHECKED: the image is built and started by root only")
    folder = tmp_path_factory.mktemp("image")
    images, started_at = Images(folder), time.monotonic()
    try:
        image = build_image(images, folder)
        print(f"image built after {time.monotonic() - started_at:.0f} s")
        yield Built(images, folder, image)
    finally:
        images.remove_all()
        shutil.rmtree(folder, ignore_errors=True)


def with_node(built: Built) -> str:
    """The image with node and npm, by the Containerfile of docs/production.md."""
    (section,) = (one for one in list_sections(ROOT / "docs" / "production.md") if one.title == "Containers")
    (text,) = (block for block in section.blocks("text") if block.startswith("FROM "))
    assert text.startswith("FROM retinue\n")
    return derive(
        built.images, built.folder / "node", f"FROM {built.image}{text[12:]}", "localhost/retinue-node"
    )


def is_ready(url: str) -> bool:
    try:
        return bool(_http.request("GET", f"{url}/ready").status == 200)
    except urllib3.exceptions.HTTPError:
        return False


def wait_for_hub(container: Container, hub: subprocess.Popen[str], url: str) -> None:
    def has_started() -> bool:
        assert hub.poll() is None, container.log
        return is_ready(url)

    wait_until(has_started, "the hub in the container is ready", limit_s=180)


def configure(container: Container, root: Root, port: int) -> None:
    """A hub on this port, as the image starts it."""
    command = (*root.config["Cmd"], "--port", str(port))
    container.configure(lambda spec: confine(spec, root, command, container.state))


def test_the_image_runs_a_hub_without_root_and_with_a_read_only_root(built: Built, tmp_path: Path) -> None:
    root, port = unpack(built.images, built.image), reserve_port()
    config = root.config
    assert config["User"] == f"{USER}:{USER}"
    assert config["Cmd"] == ["hub", "--host", "0.0.0.0"]
    assert "/ready" in config["Healthcheck"]["Test"][-1]
    assert not list(root.path.glob("opt/retinue/bin/pip*")), "nothing can be installed in it"
    assert not (root.path / "dist").exists()
    container, url = Container("retinue", tmp_path / "container"), f"http://127.0.0.1:{port}"
    configure(container, root, port)
    with container.started() as hub:
        wait_for_hub(container, hub, url)
        assert {path.stat().st_uid for path in container.state.rglob("*")} == {USER}
        assert _http.request("POST", f"{url}/execute", body=b"{}").status == 401
        token = State(container.state).local_token()
        plan = execute(url, "create_plan", {"requirements": "write tests for textwrap"}, token)
        assert "textwrap" in plan["result"]["plan"], plan
        facts = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{container.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert (facts["Uid"].split()[0], int(facts["CapEff"], 16), facts["NoNewPrivs"]) == ("65532", 0, "1")
        mounts = Path(f"/proc/{container.pid}/mounts").read_text().splitlines()
        (root_options,) = [line.split()[3] for line in mounts if line.split()[1] == "/"]
        assert "ro" in root_options.split(",")
        os.kill(container.pid, 15)
        assert hub.wait(60) == 0, container.log


def test_an_import_that_npx_starts_keeps_its_caches_below_the_state(built: Built, tmp_path: Path) -> None:
    root, port = unpack(built.images, with_node(built)), reserve_port()
    assert root.config["User"] == f"{USER}:{USER}"
    container, url = Container("retinue-npx", tmp_path / "container"), f"http://127.0.0.1:{port}"
    configure(container, root, port)
    with container.started() as hub:
        wait_for_hub(container, hub, url)
        command = ("import", "mcp-server", "thinking", "--start-s", "240", "--", *NPX[:2], PACKAGE)
        done = container.execute("retinue", *command, user=USER)
        assert done.returncode == 0, done.stdout + done.stderr + container.log
        assert "sequentialthinking" in done.stdout
        done = container.execute("retinue", "call", "sequentialthinking", json.dumps(THOUGHT), user=USER)
        assert "thoughtHistoryLength" in done.stdout, done.stdout + done.stderr
        home = container.state / "home"
        assert (home / ".npm" / "_npx").is_dir(), "npm's cache is in the home of the state"
        assert {path.lstat().st_uid for path in home.rglob("*")} == {USER}
        os.kill(container.pid, 15)
        assert hub.wait(60) == 0, container.log


UNITS = """\
FROM {image}
USER 0
RUN apt-get update && apt-get install --yes --no-install-recommends systemd dbus procps
COPY *.service /etc/systemd/system/
RUN systemctl enable retinue-hub.service retinue-worker@{worker}.service \\
 && systemctl set-default multi-user.target
"""
NO_GROUP = (
    'mount -t cgroup2 none /sys/fs/cgroup && find "/sys/fs/cgroup/{name}" -depth -type d -exec rmdir {{}} \\;'
)
OWN_GROUP = 'mkdir "/sys/fs/cgroup/{name}" && echo $$ > "/sys/fs/cgroup/{name}/cgroup.procs"'
"""A cgroup of our own is the root of all that systemd sees and changes."""

OF_SYSTEMD = (
    *(
        "CHOWN",
        "DAC_OVERRIDE",
        "DAC_READ_SEARCH",
        "FOWNER",
        "FSETID",
        "KILL",
        "SETGID",
        "SETUID",
        "SETPCAP",
        "SETFCAP",
    ),
    *("SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE", "AUDIT_WRITE", "IPC_LOCK"),
)
"""Capabilities of a systemd that makes namespaces; it sets no clock, no network and no module."""


def boot(spec: dict[str, Any], root: Root) -> None:
    """A container with systemd as its first process."""
    capabilities = [f"CAP_{name}" for name in OF_SYSTEMD]
    kinds = ("bounding", "effective", "permitted")
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": ["/lib/systemd/systemd", "--log-target=console", "--show-status=no"],
        "cwd": "/",
        "env": [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "container=retinue-test",
        ],
        "capabilities": dict.fromkeys(kinds, capabilities),
        "noNewPrivileges": False,
        "rlimits": [],
    }
    spec["root"] = {"path": str(root.path), "readonly": False}
    spec["linux"]["namespaces"] = [
        *(one for one in spec["linux"]["namespaces"] if one["type"] != "network"),
    ]
    if {"type": "cgroup"} not in spec["linux"]["namespaces"]:
        spec["linux"]["namespaces"].append({"type": "cgroup"})
    tmpfs = [
        {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": ["mode=755", "nosuid", "nodev"]}
        for place in ("/run", "/run/lock")
    ]
    spec["mounts"] = [*spec["mounts"], *tmpfs, *bind_files()]
    for mount in spec["mounts"]:
        if mount["type"] == "cgroup":
            mount["options"] = ["nosuid", "noexec", "nodev", "relatime", "rw"]


def find_free_worker() -> int:
    """A number of a worker whose port, 9101 to 9109, is free."""
    for number in range(9, 0, -1):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 9100 + number)) != 0:
                return number
    pytest.skip("NOT CHECKED: the ports of all workers are in use")


def test_the_units_run_under_systemd_with_an_import_that_npx_starts(built: Built, tmp_path: Path) -> None:
    context, port, worker = tmp_path / "units", reserve_port(), find_free_worker()
    context.mkdir()
    for unit in (DEPLOY / "systemd").glob("*.service"):
        shutil.copy(unit, context)
    text = UNITS.format(image=with_node(built), worker=worker)
    root = unpack(built.images, derive(built.images, context, text, "localhost/retinue-systemd"))
    (root.path / "etc" / "retinue" / "retinue.toml").write_text(f"[hub]\nport = {port}\n")
    container = Container("retinue-systemd", tmp_path / "container")
    container.configure(lambda spec: boot(spec, root))
    url, probes = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{9100 + worker}"

    def ask(*command: str) -> str:
        done = container.execute(*command)
        journal = container.execute("journalctl", "--no-pager", "--lines=60").stdout
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}\n{journal}"
        return done.stdout.strip()

    def as_retinue(*arguments: str) -> str:
        """A command as the user of the units, in the form of docs/production.md."""
        properties = (
            "DynamicUser=yes",
            "User=retinue",
            "StateDirectory=retinue",
            "StateDirectoryMode=0700",
            "WorkingDirectory=/etc/retinue",
        )
        options = [word for one in properties for word in ("-p", one)]
        variables = ("-E", "RETINUE_HOME=/var/lib/retinue", "-E", "HOME=/var/lib/retinue/home")
        quiet = ("systemd-run", "--quiet", "--pipe", "--wait", *options, *variables)
        return ask(*quiet, "/opt/retinue/bin/retinue", *arguments)

    def show(unit: str, key: str) -> str:
        return ask("systemctl", "show", "--value", "--property", key, unit)

    name = container.name
    hub, of_worker = "retinue-hub.service", f"retinue-worker@{worker}.service"
    with container.started(OWN_GROUP.format(name=name)) as systemd:
        wait_until(
            lambda: systemd.poll() is not None or is_ready(url), "the unit's hub is ready", limit_s=180
        )
        assert systemd.poll() is None, container.log
        wait_until(lambda: is_ready(probes), "the unit's worker is ready", limit_s=180)
        assert ask("systemctl", "is-active", hub, of_worker).split() == ["active", "active"]
        token = as_retinue("token", "new", "--scope", "mesh", "--name", "ci").split()[-1]
        done = as_retinue("import", "mcp-server", "thinking", "--start-s", "240", "--", *NPX[:2], PACKAGE)
        assert "sequentialthinking" in done
        assert execute(url, "sequentialthinking", THOUGHT, token)["result"]["thoughtHistoryLength"] == 1
        state = root.path / "var" / "lib" / "private" / "retinue"
        assert (state / "home" / ".npm" / "_npx").is_dir(), "npm's cache is in the home of the state"
        owner = state.stat()
        assert owner.st_uid != 0, "a user without rights"
        assert owner.st_mode & 0o777 == 0o700
        first = show(hub, "MainPID")
        ask("systemctl", "reload", hub)
        assert show(hub, "MainPID") == first
        ask("systemctl", "kill", "--signal=KILL", "--kill-who=main", hub)
        wait_until(
            lambda: show(hub, "NRestarts") == "1" and is_ready(url), "it is started again", limit_s=120
        )
        ask("systemctl", "stop", hub, of_worker)
        assert [show(unit, "Result") for unit in (hub, of_worker)] == ["success", "success"]
    run("unshare", "--mount", "sh", "-c", NO_GROUP.format(name=name))
