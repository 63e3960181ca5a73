"""Checks the conditions of a release, one after the other.

``python -m scripts.release --check`` builds all distributions, looks into them, installs them into empty
environments without this checkout, and runs what a user would run first. ``--set 0.2.0`` writes a version to
every place that holds one; the version of ``pyproject.toml`` is the one that counts. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from scripts.environment import find_uv
from scripts.package_settings import make_uv_environment, read_settings

ROOT = Path(__file__).resolve().parent.parent
MAIN = ROOT / "pyproject.toml"
CHANGELOG = ROOT / "CHANGELOG.md"
PACKAGES = {
    "retinue": {"retinue"},
    "retinue_koi": {"koi_mcp", "retinue_koi"},
    "retinue_testwriter": {"retinue_demo", "retinue_testwriter"},
}
"""The distributions and the packages of their wheels."""

NAMES = tuple(PACKAGES)
EXTENSIONS = {
    name: ROOT / "packages" / name / "pyproject.toml"
    for name in (name.replace("_", "-") for name in NAMES if name != "retinue")
}
"""The distributions that extend Retinue; each requires its version exactly."""

STEP_S = 300
"""The limit of one program; the first installation downloads about 200 MB."""

_VERSION = re.compile(r'^(version = ")([^"]+)(")$', re.MULTILINE)
_REQUIRED = re.compile(r'("retinue==)([^"]+)(")')


class CheckFailedError(Exception):
    """What does not hold, with the remedy."""


class SkippedError(Exception):
    """What cannot be checked on this machine, with the reason."""


@dataclass(frozen=True, slots=True)
class Built:
    """The folder of the built files, and uv with the package settings of this machine."""

    folder: Path
    uv: Path
    environment: Mapping[str, str]

    def find(self, name: str, ending: str) -> Path:
        """The one wheel or sdist of a distribution."""
        found = sorted(self.folder.glob(f"{name}-[0-9]*{ending}"))
        if len(found) != 1:
            raise CheckFailedError(f"{len(found)} files {name}-*{ending} instead of one")
        return found[0]


def read_version() -> str:
    """The version of this checkout."""
    version: str = tomllib.loads(MAIN.read_text("utf-8"))["project"]["version"]
    return version


def set_version(version: str) -> None:
    """Write the version to every place that holds one; ``uv.lock`` follows at the next ``uv lock``."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", version):
        raise CheckFailedError(f"{version!r} is no version; write X.Y.Z, or X.Y.ZrcN")
    for file in (MAIN, *EXTENSIONS.values()):
        text = _VERSION.sub(rf"\g<1>{version}\g<3>", file.read_text("utf-8"), count=1)
        file.write_text(_REQUIRED.sub(rf"\g<1>{version}\g<3>", text), "utf-8")


def check_versions() -> str:
    """The version stands once; whatever else holds it says the same."""
    version = read_version()
    found = {}
    for name, file in EXTENSIONS.items():
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        (required,) = [one for one in project["dependencies"] if one.startswith("retinue==")]
        found[f"packages/{name}"] = project["version"]
        found[f"the requirement of {name}"] = required.partition("==")[2]
    locked = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
    found |= {f"uv.lock: {one['name']}": one["version"] for one in locked if one["source"].get("editable")}
    if wrong := {place: one for place, one in found.items() if one != version}:
        raise CheckFailedError(
            f"pyproject.toml has {version}, but {wrong}; run: --set {version}, then uv lock"
        )
    return version


def check_changelog() -> str:
    """The changes of the version are written down, under its number or still as unreleased."""
    text, version = CHANGELOG.read_text("utf-8"), read_version()
    for heading in (version, "Unreleased"):
        section = re.search(
            rf"^## \[{re.escape(heading)}\].*?\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
        )
        if section and re.search(r"^- ", section[1], re.MULTILINE):
            return f"under [{heading}]"
    raise CheckFailedError(f"CHANGELOG.md has no changes under [{version}] or [Unreleased]")


def check_tree() -> str:
    """Nothing is uncommitted, so that the tag is what was built."""
    done = _run(["git", "status", "--porcelain"], cwd=ROOT)
    if done.strip():
        raise CheckFailedError(f"{len(done.splitlines())} files are not committed; commit or remove them")
    return "committed"


def build(folder: Path) -> Built:
    """Build the sdists and, from them, the wheels."""
    settings = read_settings()
    uv, environment = find_uv(settings), make_uv_environment(settings, os.environ)
    environment.pop("VIRTUAL_ENV", None)
    environment["UV_PYTHON"] = sys.executable
    _run([uv, "build", "--quiet", "--all-packages", "--out-dir", folder], cwd=ROOT, environment=environment)
    return Built(folder, uv, environment)


def check_wheels(built: Built) -> str:
    """Each wheel has its types' mark, license and metadata, and nothing that is not of the package."""
    sizes = []
    for name in NAMES:
        wheel = built.find(name, ".whl")
        with zipfile.ZipFile(wheel) as archive:
            names, metadata = archive.namelist(), _read_metadata(archive)
        folders = {entry.partition("/")[0] for entry in names}
        own = PACKAGES[name]
        if strange := {
            folder for folder in folders if folder not in own and not folder.endswith(".dist-info")
        }:
            raise CheckFailedError(f"{wheel.name} holds {', '.join(sorted(strange))}")
        wanted = [f"{name}/py.typed", f"{name}-{read_version()}.dist-info/licenses/LICENSE"]
        if missing := [entry for entry in wanted if entry not in names]:
            raise CheckFailedError(f"{wheel.name} lacks {', '.join(missing)}")
        if metadata["Version"] != read_version():
            raise CheckFailedError(f"{wheel.name} has the version {metadata['Version']}")
        sizes.append(f"{wheel.name} {wheel.stat().st_size / 1000:.0f} kB")
    return ", ".join(sizes)


def check_readme(built: Built) -> str:
    """What an index shows has no link that leads nowhere."""
    with zipfile.ZipFile(built.find("retinue", ".whl")) as archive:
        text = str(_read_metadata(archive).get_payload())
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    if relative := re.findall(r"\]\(((?!https?://)[^)]+)\)", prose):
        raise CheckFailedError(f"relative links: {', '.join(relative[:5])}")
    return f"{len(text.splitlines())} lines, no relative links"


def check_sdists(built: Built) -> str:
    """Each sdist has what its wheel is built from, and no state of this machine."""
    for name in NAMES:
        sdist = built.find(name, ".tar.gz")
        with tarfile.open(sdist) as archive:
            names = [entry.partition("/")[2] for entry in archive.getnames()]
        if "pyproject.toml" not in names or "LICENSE" not in names:
            raise CheckFailedError(f"{sdist.name} lacks pyproject.toml or LICENSE")
        if strange := [
            entry for entry in names if re.search(r"(^|/)(\.venv|\.tools|\.retinue|dist)(/|$)", entry)
        ]:
            raise CheckFailedError(f"{sdist.name} holds {', '.join(strange[:3])}")
    return "from which the wheels were built"


def install(built: Built, folder: Path, requirement: str = "retinue[demo]") -> Path:
    """Install the built wheels into an empty environment; what they need comes from the index."""
    _need_index(built)
    _run([built.uv, "venv", "--quiet", folder], environment=built.environment)
    target: list[str | Path] = ["--quiet", "--python", folder / "bin" / "python"]
    _run(
        [built.uv, "pip", "install", *target, "--find-links", built.folder, requirement],
        environment=built.environment,
    )
    return folder / "bin"


def try_program(program: Path, folder: Path) -> str:
    """Run what a user runs first, in an empty folder, with an empty home and without this checkout."""
    folder.mkdir(exist_ok=True)
    run = _user_of(program, folder)
    if run("--version").strip() != f"retinue {read_version()}":
        raise CheckFailedError(f"retinue --version prints {run('--version')!r}")
    for shell in ("bash", "zsh", "fish"):
        script = run("completion", shell)
        found = shutil.which(shell)
        if "_RETINUE_COMPLETE" not in script:
            raise CheckFailedError(f"retinue completion {shell} prints no script")
        if found:
            (folder / f"completion.{shell}").write_text(script)
            _run([found, "-n", folder / f"completion.{shell}"])
    run("new", "my-agent")
    run("hub", "--detach", "--bare", "--port", "0")
    try:
        run("status")
        run("find", "anything")
    finally:
        run("stop")
    return "version, completion, new, hub, status, stop"


def try_demo(program: Path, folder: Path, module: str = "colorsys") -> str:
    """Run the demo to its end, in an empty folder and without this checkout."""
    folder.mkdir(exist_ok=True)
    started = time.monotonic()
    shown = _user_of(program, folder)("demo", module)
    score = re.search(r"(\d+) of (\d+) tests of \w+ pass", shown)
    if score is None or score[1] != score[2]:
        raise CheckFailedError(f"the demo ends without a result: {shown[-500:]}")
    return f"{score[0]}, {time.monotonic() - started:.0f} s"


def try_uvx(built: Built, folder: Path) -> str:
    """``uvx --from 'retinue[demo]' retinue``, with the wheels in place of an index that has them."""
    _need_index(built)
    folder.mkdir(exist_ok=True)
    started = time.monotonic()
    # --no-cache would download everything again; --refresh-package takes these wheels, not earlier ones
    renewed = [word for name in ("retinue", *EXTENSIONS) for word in ("--refresh-package", name)]
    command: list[str | Path] = [
        built.uv,
        "tool",
        "run",
        "--find-links",
        built.folder,
        *renewed,
        "--from",
        "retinue[demo]",
    ]
    environment = _bare_environment(folder) | {
        name: value
        for name, value in built.environment.items()
        if name.startswith(("UV_", "SSL_", "HTTP", "http"))
    }
    environment["UV_CACHE_DIR"] = _run([built.uv, "cache", "dir"], environment=built.environment).strip()
    shown = _run([*command, "retinue", "demo", "colorsys"], cwd=folder, environment=environment)
    if "tests of colorsys pass" not in shown:
        raise CheckFailedError(f"the demo ends without a result: {shown[-500:]}")
    return f"{time.monotonic() - started:.0f} s"


def try_pipx(built: Built, folder: Path) -> str:
    """``pipx install 'retinue[demo]'``, by the pipx of the machine or that of the index."""
    _need_index(built)
    folder.mkdir(exist_ok=True)
    started = time.monotonic()
    found = shutil.which("pipx")
    pipx: list[str | Path] = [found] if found else [built.uv, "tool", "run", "pipx"]
    environment = {
        **built.environment,
        "PIPX_HOME": str(folder / "pipx"),
        "PIPX_BIN_DIR": str(folder / "bin"),
        "PIPX_MAN_DIR": str(folder / "man"),
    }
    wheel = built.find("retinue", ".whl")
    links = f"--pip-args=--find-links={built.folder}"
    _run(
        [*pipx, "install", "--python", sys.executable, links, f"{wheel}[demo]"],
        environment=environment,
    )
    return f"{try_program(folder / 'bin' / 'retinue', folder / 'user')}, {time.monotonic() - started:.0f} s"


def _need_index(built: Built) -> None:
    """Raise SkippedError where no index is reachable and nothing is in uv's cache."""
    probe = [str(built.uv), "pip", "compile", "--quiet", "--no-deps", "-"]
    done = subprocess.run(
        probe,
        input="click>=8.3",
        capture_output=True,
        text=True,
        env=built.environment,
        timeout=STEP_S,
        check=False,
    )
    if done.returncode != 0:
        raise SkippedError("NOT CHECKED, because no package index is reachable from here")


def _user_of(program: Path, folder: Path) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        return _run([program, *arguments], cwd=folder, environment=_bare_environment(folder))

    return run


def _bare_environment(folder: Path) -> dict[str, str]:
    """Nothing of this checkout and of this user."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


def _read_metadata(archive: zipfile.ZipFile) -> Message:
    (name,) = [entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA")]
    return email.message_from_string(archive.read(name).decode("utf-8"))


def _run(
    command: Sequence[str | Path], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """The standard output of a program; CheckFailedError with its last lines if it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailedError(f"{Path(str(command[0])).name} did not end within {STEP_S} s") from error
    if done.returncode != 0:
        last = " · ".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise CheckFailedError(f"{' '.join(map(str, command))}: status {done.returncode}: {last}")
    return done.stdout


def check_all() -> int:
    """Run every check and print one line for each; 1 if any failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = build(folder / "dist")
        programs = folder / "environment"
        checks: dict[str, Callable[[], str]] = {
            "versions": check_versions,
            "changelog": check_changelog,
            "tree": check_tree,
            "wheels": lambda: check_wheels(built),
            "readme": lambda: check_readme(built),
            "sdists": lambda: check_sdists(built),
            "install": lambda: str(install(built, programs).name and "retinue[demo]"),
            "program": lambda: try_program(programs / "bin" / "retinue", folder / "user"),
            "demo": lambda: try_demo(programs / "bin" / "retinue", folder / "demo"),
            "uvx": lambda: try_uvx(built, folder / "uvx"),
            "pipx": lambda: try_pipx(built, folder / "pipx"),
        }
        return _report(checks)


def _report(checks: Mapping[str, Callable[[], str]]) -> int:
    failed, skipped = [], []
    for name, check in checks.items():
        try:
            verdict, found = "ok", check()
        except CheckFailedError as error:
            verdict, found = "FAIL", str(error)
            failed.append(name)
        except SkippedError as error:
            verdict, found = "SKIP", str(error)
            skipped.append(name)
        print(f"{verdict:<5} {name:<10} {found}", flush=True)
    if skipped:
        print(f"release: NOT CHECKED: {', '.join(skipped)}")
    print(f"release: not ready: {', '.join(failed)}" if failed else "release: what was checked is ready")
    return 1 if failed else 0


def main(arguments: Sequence[str]) -> int:
    """Check, or set the version."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--check", action="store_true", help="build, install and try all distributions")
    chosen.add_argument("--set", metavar="X.Y.Z", help="write the version to every place that holds one")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            return check_all()
        set_version(options.set)
    except CheckFailedError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"version {options.set}; now run uv lock and write CHANGELOG.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
