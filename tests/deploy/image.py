"""Builds the image with buildah on a base made by debootstrap, and starts containers of it with crun.

Needs root and the programs of ``scripts/services soak``. All is in a folder of its own and removed again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.environment import find_uv
from scripts.package_settings import make_uv_environment, read_settings
from scripts.release import build
from tests.docs.pages import ROOT
from tests.services import get_program

USER = 65532
SUITE = "bookworm"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


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


def derive(images: Images, folder: Path, text: str, tag: str) -> str:
    """An image of a Containerfile with this text, built in ``folder``."""
    folder.mkdir(exist_ok=True)
    (folder / "Containerfile").write_text(text)
    images("build", "--isolation", "chroot", "--pull-never", "--format", "docker", "--tag", tag, folder)
    return tag


@dataclass(frozen=True, slots=True)
class Root:
    """The unpacked files of an image, and its settings."""

    path: Path
    config: dict[str, Any]


def unpack(images: Images, image: str) -> Root:
    """The files of an image in a folder, until `Images.remove_all`."""
    config = json.loads(images("inspect", "--type", "image", image))["Docker"]["config"]
    working = images("from", "--pull-never", image)
    return Root(Path(images("mount", working)), config)


class Container:
    """A container of crun with the network of this machine; ``state`` is its folder ``/var/lib/retinue``.

    crun runs in a mount namespace of its own, because it refuses mixed kinds of cgroups.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = f"{name}-{os.getpid()}"
        self.folder = folder
        self.state = folder / "state"
        self.bundle = folder / "bundle"
        self._log = folder / "log"
        self._crun = (get_program("crun"), "--root", str(folder / "crun"), "--cgroup-manager=disabled")
        self.bundle.mkdir(parents=True)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def configure(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Write the specification of crun, changed by ``change``."""
        run(get_program("crun"), "spec", cwd=self.bundle)
        spec = json.loads((self.bundle / "config.json").read_text())
        change(spec)
        (self.bundle / "config.json").write_text(json.dumps(spec))

    @contextmanager
    def started(self, prepare: str = "") -> Iterator[subprocess.Popen[str]]:
        """The container while inside; ``prepare`` is a line of a shell that runs before crun."""
        own = "mount -t tmpfs none /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup"
        script = f'{own} && {prepare or ":"} && exec "$@"'
        crun = [*self._crun, "run", "--bundle", str(self.bundle), self.name]
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *crun]
        with (
            self._log.open("w") as output,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    subprocess.run([*self._crun, "kill", self.name, "KILL"], check=False)
                    process.wait(60)

    def execute(self, *command: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
        """A program in the running container, with the environment of its first process."""
        options = () if user is None else ("--user", f"{user}:{user}")
        return subprocess.run(
            [*self._crun, "exec", *options, self.name, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    @property
    def pid(self) -> int:
        """The first process of the container, as this machine counts."""
        return int(json.loads((self.folder / "crun" / self.name / "status").read_text())["pid"])


def confine(spec: dict[str, Any], root: Root, command: Sequence[str], state: Path) -> None:
    """The settings of the image, a read-only root, no capability, this network, and the volume."""
    user, group = map(int, root.config["User"].split(":"))
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": user, "gid": group},
        "args": [*root.config["Entrypoint"], *command],
        "cwd": root.config["WorkingDir"],
        "env": root.config["Env"],
        "capabilities": {},
        "noNewPrivileges": True,
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 16384}],
    }
    spec["root"] = {"path": str(root.path), "readonly": True}
    linux = spec["linux"]
    linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "network"]
    mounts = [one for one in spec["mounts"] if one["type"] not in ("cgroup", "sysfs")]
    options = ["nosuid", "nodev"]
    tmp = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777", *options]}
    state.mkdir(mode=0o700)
    os.chown(state, user, group)
    (volume,) = root.config["Volumes"]
    kept = {"destination": volume, "type": "bind", "source": str(state), "options": ["rbind", "rw", *options]}
    spec["mounts"] = [*mounts, tmp, kept, *bind_files()]


def bind_files() -> list[dict[str, Any]]:
    """Mounts of the files with this machine's names and the certificates that it trusts; all read-only."""
    paths = (Path("/etc/resolv.conf"), Path("/etc/hosts"), CERTIFICATES)
    return [
        {"destination": str(path), "type": "bind", "source": str(path), "options": ["bind", "ro"]}
        for path in paths
        if path.is_file()
    ]
