"""The image: built by buildah on a base made by debootstrap, and started by crun with a read-only root.

Needs root and the programs of ``scripts/services soak``. All is in a folder of its own and removed again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3

from scripts.environment import find_uv
from scripts.package_settings import make_uv_environment, read_settings
from scripts.release import build
from tests.docs.pages import ROOT
from tests.ports import reserve_port
from tests.processes.running import execute, wait_until
from tests.services import get_program

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
USER = 65532
SUITE = "bookworm"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(10.0))


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """The output of a program that succeeds."""
    # the tests' own DOCKER_CONFIG names no file, which buildah takes for a fault
    environment = {name: value for name, value in os.environ.items() if name != "DOCKER_CONFIG"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


class Images:
    """Buildah with storage of its own below ``folder``."""

    def __init__(self, folder: Path) -> None:
        places = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"))
        self._command = (get_program("buildah"), "--storage-driver", "vfs", *places)

    def __call__(self, *arguments: str | Path, cwd: Path = ROOT) -> str:
        return run(*self._command, *arguments, cwd=cwd)

    def remove_all(self) -> None:
        self("rm", "--all")
        self("rmi", "--all", "--force")


def make_base(images: Images, folder: Path) -> str:
    """An image of the smallest Debian, as a public one would be."""
    root = folder / "debian"
    packages = "ca-certificates,python3,python3-venv"
    run(get_program("debootstrap"), "--variant=minbase", f"--include={packages}", SUITE, root)
    context = folder / "base"
    context.mkdir()
    run("tar", "--numeric-owner", "--directory", root, "--create", "--file", context / "base.tar", ".")
    shutil.rmtree(root)
    (context / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
    images("build", "--isolation", "chroot", "--tag", "localhost/base", context)
    return "localhost/base"


def make_context(folder: Path) -> Path:
    """What the Containerfile copies: the wheels and the locked versions, as docs/production.md makes them."""
    dist = folder / "context" / "dist"
    build(dist)
    settings = read_settings()
    export = ("export", "--quiet", "--frozen", "--no-emit-workspace", "--no-default-groups")
    extras = [word for name in ("demo", "llm", "otel") for word in ("--extra", name)]
    subprocess.run(
        [find_uv(settings), *export, *extras, "--output-file", dist / "requirements.txt"],
        cwd=ROOT,
        env=make_uv_environment(settings, os.environ),
        check=True,
    )
    shutil.copy(ROOT / ".containerignore", folder / "context")
    return folder / "context"


def build_image(images: Images, folder: Path) -> str:
    given = [f"BASE={make_base(images, folder)}"]
    volumes: list[str] = []
    if CERTIFICATES.is_file():
        # a proxy of this machine may sign with a certificate that only this machine knows
        given.append(f"PIP_CERT={CERTIFICATES}")
        volumes = ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    if index := read_settings().get("index-url"):
        given.append(f"PIP_INDEX_URL={index}")
    arguments = [word for one in given for word in ("--build-arg", one)]
    file = ROOT / "deploy" / "container" / "Containerfile"
    images(
        *("build", "--isolation", "chroot", "--format", "docker", *arguments, *volumes),
        *("--file", file, "--tag", "localhost/retinue", make_context(folder)),
    )
    return "localhost/retinue"


def make_bundle(folder: Path, root: Path, config: dict[str, Any], command: Sequence[str]) -> Path:
    """A bundle for crun: the settings of the image, a read-only root, no capability, this network."""
    bundle = folder / "bundle"
    bundle.mkdir()
    run(get_program("crun"), "spec", cwd=bundle)
    spec = json.loads((bundle / "config.json").read_text())
    user, group = map(int, config["User"].split(":"))
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": user, "gid": group},
        "args": [*config["Entrypoint"], *command],
        "cwd": config["WorkingDir"],
        "env": config["Env"],
        "capabilities": {},
        "noNewPrivileges": True,
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 16384}],
    }
    spec["root"] = {"path": str(root), "readonly": True}
    linux = spec["linux"]
    linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "network"]
    mounts = [one for one in spec["mounts"] if one["type"] not in ("cgroup", "sysfs")]
    options = ["nosuid", "nodev"]
    tmp = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777", *options]}
    state = folder / "state"
    state.mkdir(mode=0o700)
    os.chown(state, user, group)
    (volume,) = config["Volumes"]
    kept = {"destination": volume, "type": "bind", "source": str(state), "options": ["rbind", "rw", *options]}
    spec["mounts"] = [*mounts, tmp, kept]
    (bundle / "config.json").write_text(json.dumps(spec))
    return bundle


@contextmanager
def container(folder: Path, bundle: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """A container of crun; in a mount namespace of its own, because crun refuses mixed kinds of cgroups."""
    crun = (get_program("crun"), "--root", str(folder / "crun"), "--cgroup-manager=disabled")
    script = 'mount -t tmpfs none /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *crun, "run", "--bundle", str(bundle), name]
    log = folder / f"{name}.log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output, text=True) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                subprocess.run([*crun, "kill", name, "KILL"], check=False)
                process.wait(30)


def test_the_image_is_built_and_runs_a_hub_without_root_and_with_a_read_only_root(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT CHECKED: the image is built and started by root only")
    images, name, port = Images(tmp_path), f"retinue-{os.getpid()}", reserve_port()
    started_at = time.monotonic()
    try:
        image = build_image(images, tmp_path)
        print(f"image built after {time.monotonic() - started_at:.0f} s")
        config = json.loads(images("inspect", "--type", "image", image))["Docker"]["config"]
        assert config["User"] == f"{USER}:{USER}"
        assert config["Cmd"] == ["hub", "--host", "0.0.0.0"]
        assert "/ready" in config["Healthcheck"]["Test"][-1]
        working = images("from", "--pull-never", image)
        root = Path(images("mount", working))
        assert not list(root.glob("opt/retinue/bin/pip*")), "nothing can be installed in it"
        assert not (root / "dist").exists()
        command = (*config["Cmd"], "--port", str(port))
        bundle = make_bundle(tmp_path, root, config, command)
        url = f"http://127.0.0.1:{port}"
        with container(tmp_path, bundle, name) as hub:
            log = tmp_path / f"{name}.log"

            def is_ready() -> bool:
                assert hub.poll() is None, log.read_text()
                try:
                    return _http.request("GET", f"{url}/ready").status == 200
                except urllib3.exceptions.HTTPError:
                    return False

            wait_until(is_ready, "the hub in the container is ready", limit_s=180)
            state = tmp_path / "state"
            token = (state / "keys" / "local.token").read_text().strip()
            assert {path.stat().st_uid for path in state.rglob("*")} == {USER}
            assert _http.request("POST", f"{url}/execute", body=b"{}").status == 401
            plan = execute(url, "create_plan", {"requirements": "write tests for textwrap"}, token)
            assert "textwrap" in plan["result"]["plan"], plan
            (pid,) = (tmp_path / "crun" / name).glob("status")
            inside = json.loads(pid.read_text())["pid"]
            facts = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{inside}/status").read_text().splitlines()
                if ":\t" in line
            )
            assert (facts["Uid"].split()[0], int(facts["CapEff"], 16), facts["NoNewPrivs"]) == (
                "65532",
                0,
                "1",
            )
            mounts = Path(f"/proc/{inside}/mounts").read_text().splitlines()
            (root_options,) = [line.split()[3] for line in mounts if line.split()[1] == "/"]
            assert "ro" in root_options.split(",")
            os.kill(inside, 15)
            assert hub.wait(60) == 0, log.read_text()
    finally:
        images.remove_all()
