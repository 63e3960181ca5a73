"""The image runs a hub without root and with a read-only root, and an import that npx starts.

Needs root and the programs of ``scripts/services soak``. All is in a folder of its own and removed again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3

from retinue.storage.state import State
from tests.deploy.image import (
    USER,
    Container,
    Images,
    Root,
    build_image,
    confine,
    derive,
    unpack,
)
from tests.docs.pages import ROOT, list_sections
from tests.ports import reserve_port
from tests.processes.running import execute, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
THOUGHT = {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
SERVER = json.loads((ROOT / "tests" / "interop" / "npm" / "package.json").read_text())["dependencies"]
NPX = ("npx", "-y", "@modelcontextprotocol/server-sequential-thinking")
PACKAGE = f"{NPX[-1]}@{SERVER[NPX[-1]]}"
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(10.0))


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
