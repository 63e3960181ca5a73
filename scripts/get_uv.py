"""Installs the pinned uv into a private folder, with pip: the Python's own, ensurepip's, or pip's wheel.

A bare Debian python3 has neither pip nor ensurepip. pip also runs from its wheel, one file for every
platform, so that file is fetched with the standard library and checked against the digest below. What pip
installs is checked against the digests of ``scripts/uv.txt``, whichever index or mirror answered.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from scripts.package_settings import PYPI, Settings, is_true

PINS = Path(__file__).with_name("uv.txt")
PIP_WHEEL = "pip-26.3-py3-none-any.whl"
PIP_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
TIMEOUT_S = 60.0


class UvNotFoundError(Exception):
    """The pinned uv could not be installed; the text holds the reasons."""


def pinned_version() -> str:
    """The version of uv that ``scripts/uv.txt`` names."""
    version = re.search(r"^uv==(\S+)", PINS.read_text("utf-8"), re.MULTILINE)
    if version is None:
        raise UvNotFoundError(f"{PINS} names no version of uv")
    return version.group(1)


def install_uv(folder: Path, settings: Settings) -> Path:
    """Install uv and return the path of its program, ``folder/bin/uv``; raises UvNotFoundError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fresh = Path(scratch) / "uv"
        command = [*_find_pip(Path(scratch), settings), "install", "--quiet", "--target", str(fresh)]
        command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", str(PINS)]
        # The user's own defaults for where pip installs must not meet --target.
        overrides = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = _run(command, os.environ | overrides)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise UvNotFoundError(f"pip failed: {lines[-1]}")
        try:
            fresh.rename(folder)
        except OSError:
            # Another process has installed it meanwhile.
            if not (folder / "bin" / "uv").is_file():
                raise
    return folder / "bin" / "uv"


def _find_pip(scratch: Path, settings: Settings) -> list[str]:
    """The command that runs pip; a pip that is not installed is put into ``scratch``."""
    if _run([sys.executable, "-m", "pip", "--version"]).returncode == 0:
        return [sys.executable, "-m", "pip"]
    if _run([sys.executable, "-m", "venv", str(scratch / "venv")]).returncode == 0:
        return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]
    wheel = scratch / PIP_WHEEL
    wheel.write_bytes(_fetch_pip(settings))
    return [sys.executable, str(wheel / "pip")]


def _run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def _fetch_pip(settings: Settings) -> bytes:
    """pip's wheel from a folder or an index of the settings."""
    problems = []
    places = settings.get("find-links", "").split()
    if not is_true(settings.get("no-index")):
        indexes = [settings.get("index-url") or PYPI, *settings.get("extra-index-url", "").split()]
        places += [f"{index.rstrip('/')}/pip/" for index in indexes]
    for place in places:
        try:
            content = _fetch_from(place, settings)
        except (OSError, ValueError) as error:
            problems.append(f"{_without_login(place)}: {error}")
            continue
        if (found := hashlib.sha256(content).hexdigest()) == PIP_SHA256:
            return content
        problems.append(f"{_without_login(place)}: the sha256 {found} of {PIP_WHEEL} is not the pinned one")
    raise UvNotFoundError("\n".join([f"{sys.executable} has neither pip nor ensurepip", *problems]))


def _fetch_from(place: str, settings: Settings) -> bytes:
    """pip's wheel from a folder, or from the link on a page of an index."""
    folder = Path(urllib.request.url2pathname(urllib.parse.urlsplit(place).path)).expanduser()
    if place.startswith("file:") or "://" not in place:
        return (folder / PIP_WHEEL).read_bytes()
    page = _fetch(place, settings).decode("utf-8", "replace")
    link = re.search(rf"""href=["']([^"']*{re.escape(PIP_WHEEL)})""", page)
    if link is None:
        raise ValueError(f"it has no {PIP_WHEEL}")
    return _fetch(urllib.parse.urljoin(place, link.group(1)), settings)


def _fetch(url: str, settings: Settings) -> bytes:
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(_without_login(url), headers={"Accept": "text/html, */*;q=0.1"})
    if parts.username:
        login = urllib.parse.unquote(parts.netloc.rpartition("@")[0])
        # Not repeated after a redirect to another host.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    context = ssl.create_default_context()
    if certificates := settings.get("cert"):
        is_folder = Path(certificates).is_dir()
        context.load_verify_locations(**{"capath" if is_folder else "cafile": certificates})
    if client_certificate := settings.get("client-cert"):
        context.load_cert_chain(client_certificate)
    if parts.hostname in {host.partition(":")[0] for host in settings.get("trusted-host", "").split()}:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as response:
        content: bytes = response.read()
        return content


def _without_login(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)
