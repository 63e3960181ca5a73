"""Gets the pinned uv into a private folder: by pip where there is one, else from its wheel.

Run as ``python -m scripts.get_uv FOLDER``. A bare Debian python3 has neither pip nor ensurepip; for it
the wheel is read from the package index with the standard library alone. Both ways check the content
against the hashes of ``scripts/uv.txt``, so it does not matter which mirror answered.
"""

from __future__ import annotations

import base64
import hashlib
import html.parser
import io
import json
import netrc
import os
import platform
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from scripts.package_settings import PackageSettings, read_package_settings

PINS = Path(__file__).with_name("uv.txt")
BLOCK_BYTES = 1 << 16


class UvNotFoundError(Exception):
    """No way led to the pinned uv; the text says what was tried."""


def read_pins(text: str) -> tuple[str, frozenset[str]]:
    """The version and the accepted sha256 digests of a pip requirements file that names only uv."""
    version = re.search(r"^uv==(\S+)", text, re.MULTILINE)
    if version is None:
        raise UvNotFoundError(f"{PINS} names no version of uv")
    return version.group(1), frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


def install_uv(folder: Path, settings: PackageSettings) -> Path:
    """Put uv's program into ``folder/bin`` and return its path; ``UvNotFoundError`` when no way works."""
    problems = []
    for way in (_install_with_pip, _install_from_wheel):
        try:
            way(folder, settings)
        except UvNotFoundError as error:
            problems.append(str(error))
            continue
        return folder / "bin" / "uv"
    raise UvNotFoundError("\n".join(problems))


def _install_with_pip(folder: Path, settings: PackageSettings) -> None:
    del settings  # pip reads its own
    with tempfile.TemporaryDirectory(prefix="retinue-pip-") as scratch:
        python = _python_with_pip(Path(scratch))
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            command = [python, "-m", "pip", "install", "--quiet", "--target", f"{fresh}/uv", "--no-deps"]
            command += ["--only-binary=:all:", "--require-hashes", "--requirement", str(PINS)]
            # A user's own defaults for where pip installs must not meet --target.
            overrides = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            done = _run(command, os.environ | overrides)
            if done.returncode != 0:
                lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
                raise UvNotFoundError(f"pip failed: {lines[-1]}")
            _move(Path(fresh) / "uv", folder)


def _python_with_pip(scratch: Path) -> str:
    if _run([sys.executable, "-m", "pip", "--version"]).returncode == 0:
        return sys.executable
    if _run([sys.executable, "-m", "venv", str(scratch / "venv")]).returncode == 0:
        return str(scratch / "venv" / "bin" / "python")
    raise UvNotFoundError(f"{sys.executable} has neither pip nor ensurepip")


def _run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def _install_from_wheel(folder: Path, settings: PackageSettings) -> None:
    version, digests = read_pins(PINS.read_text("utf-8"))
    problems: list[str] = []
    for url, digest in _find_wheels(version, digests, settings, problems):
        try:
            content = _fetch(url, settings, progress=True)
        except (OSError, ValueError) as error:
            problems.append(f"{_without_password(url)}: {error}")
            continue
        found = hashlib.sha256(content).hexdigest()
        if found not in digests or (digest and digest != found):
            problems.append(f"{_without_password(url)}: its sha256 {found} is not one that is pinned")
            continue
        _unpack(content, version, folder)
        return
    raise UvNotFoundError("\n".join(problems) or f"no wheel of uv {version} fits {platform.platform()}")


def _find_wheels(
    version: str, digests: frozenset[str], settings: PackageSettings, problems: list[str]
) -> Iterator[tuple[str, str]]:
    """Addresses of wheels that fit this machine, each with the digest its index claims ("" for none)."""
    indexes = [] if settings.no_index else [settings.index_url, *settings.extra_index_urls]
    pages = [*map(_as_url, settings.find_links), *(f"{index.rstrip('/')}/uv/" for index in indexes)]
    for page in pages:
        try:
            links = list_links(page, settings)
        except (OSError, ValueError) as error:
            problems.append(f"{_without_password(page)}: {error}")
            continue
        for link in links:
            url, _, fragment = link.partition("#")
            digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
            name = urllib.parse.unquote(url.rpartition("/")[2])
            if (not digest or digest in digests) and fits_this_machine(name, version):
                yield url, digest


def list_links(page: str, settings: PackageSettings) -> list[str]:
    """The absolute addresses on one page of an index: HTML or JSON (PEP 503, PEP 691), or a local folder."""
    local = Path(urllib.request.url2pathname(urllib.parse.urlsplit(page).path))
    if page.startswith("file:") and local.is_dir():
        if not (local / "index.html").is_file():
            return [path.resolve().as_uri() for path in sorted(local.iterdir())]
        page = (local / "index.html").as_uri()
    text = _fetch(page, settings).decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        files = json.loads(text)["files"]
        found = [f"{file['url']}#sha256={file.get('hashes', {}).get('sha256', '')}" for file in files]
        return [urllib.parse.urljoin(page, link) for link in found]
    parser = _Anchors()
    parser.feed(text)
    return [urllib.parse.urljoin(page, link) for link in parser.links]


class _Anchors(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def fits_this_machine(filename: str, version: str) -> bool:
    """Whether a wheel of uv runs here, judged by the platform tags in its name."""
    prefix = f"uv-{version}-py3-none-"
    if not (filename.startswith(prefix) and filename.endswith(".whl")):
        return False
    machine = platform.machine().replace("AMD64", "x86_64")
    library, number = platform.libc_ver()
    for tag in filename[len(prefix) : -len(".whl")].split("."):
        match = re.fullmatch(r"(manylinux|musllinux|macosx)_(\d+)_(\d+)_(\w+)", tag)
        if match is None or match.group(4) != machine:
            continue
        kind, wanted = match.group(1), (int(match.group(2)), int(match.group(3)))
        if sys.platform == "darwin" and kind == "macosx":
            return True
        if sys.platform == "linux" and library == "glibc" and kind == "manylinux":
            major, minor = (int(part) for part in number.split(".")[:2])
            return (major, minor) >= wanted
        if sys.platform == "linux" and library != "glibc" and kind == "musllinux":
            return True
    return False


def _fetch(url: str, settings: PackageSettings, *, progress: bool = False) -> bytes:
    address, login = _split_login(url)
    request = urllib.request.Request(address)
    request.add_header("Accept", "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1")
    request.add_header("User-Agent", "retinue-bootstrap")
    if login:
        # Not sent on after a redirect: the other host has no business with it.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    host = urllib.parse.urlsplit(address).hostname or ""
    context = _tls_context(settings, host)
    with urllib.request.urlopen(request, timeout=settings.timeout_s, context=context) as response:
        size = int(response.headers.get("Content-Length") or 0)
        buffer = io.BytesIO()
        while block := response.read(BLOCK_BYTES):
            buffer.write(block)
            if progress and size and sys.stderr.isatty():
                print(f"\r  uv: {buffer.tell() * 100 // size} % of {size >> 20} MB", end="", file=sys.stderr)
        if progress and sys.stderr.isatty():
            print(file=sys.stderr)
        return buffer.getvalue()


def _tls_context(settings: PackageSettings, host: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.certificates:
        is_folder = Path(settings.certificates).is_dir()
        context.load_verify_locations(**{"capath" if is_folder else "cafile": settings.certificates})
    if settings.client_certificate:
        context.load_cert_chain(settings.client_certificate)
    if host in {trusted.partition(":")[0] for trusted in settings.trusted_hosts}:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _split_login(url: str) -> tuple[str, str]:
    """The url without its user and password, and those two, from the url or from ``.netrc``."""
    parts = urllib.parse.urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if user:
        return urllib.parse.urlunsplit(parts._replace(netloc=host)), urllib.parse.unquote(user)
    try:
        entry = netrc.netrc(os.environ.get("NETRC")).authenticators(parts.hostname or "")
    except (OSError, netrc.NetrcParseError):
        return url, ""
    return url, f"{entry[0]}:{entry[2]}" if entry else ""


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def _as_url(place: str) -> str:
    return place if "://" in place else Path(place).expanduser().resolve().as_uri()


def _unpack(wheel: bytes, version: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as fresh,
        zipfile.ZipFile(io.BytesIO(wheel)) as archive,
    ):
        program = Path(fresh) / "uv" / "bin" / "uv"
        program.parent.mkdir(parents=True)
        program.write_bytes(archive.read(f"uv-{version}.data/scripts/uv"))
        program.chmod(0o755)
        _move(Path(fresh) / "uv", folder)


def _move(fresh: Path, folder: Path) -> None:
    """Put the finished folder in place; one that another process finished first is as good."""
    try:
        fresh.rename(folder)
    except OSError:
        if not (folder / "bin" / "uv").is_file():
            raise


def main(arguments: list[str]) -> int:
    """Install into the named folder; 1 with one line of reason per way when that failed."""
    try:
        print(install_uv(Path(arguments[0]), read_package_settings()))
    except UvNotFoundError as error:
        print(f"retinue: uv could not be installed:\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
