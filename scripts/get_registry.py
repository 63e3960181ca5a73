"""Fetches the pinned registry program of CNCF Distribution 3 into ``.tools``, for tests beside Debian's 2.8.

Debian has no package of it. Where it cannot be fetched, this says so, and the tests that need it are skipped.
It needs nothing but Python's standard library.
"""

from __future__ import annotations

import hashlib
import io
import platform
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

VERSION = "3.0.0"
URL = "https://github.com/distribution/distribution/releases/download/v{version}/registry_{version}_linux_{machine}.tar.gz"
SHA256 = {
    "amd64": "61c9a2c0d5981a78482025b6b69728521fbc78506d68b223d4a2eb825de5ca3d",
    "arm64": "6c2ee1d135626fa42e0d6fb66a0e0f42e22439e5050087d04f4c5ff53655892e",
}
"""By machine, the digests that the official image of the registry checks, too."""

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
PROGRAM = Path(__file__).resolve().parent.parent / ".tools" / f"registry-{VERSION}" / "registry"
TIMEOUT_S = 60.0
MAX_BYTES = 64 * 1024 * 1024


def install_registry(program: Path = PROGRAM, url: str = URL) -> None:
    """Install the program unless it is there. Raises OSError and ValueError."""
    if program.exists():
        return
    machine = MACHINES.get(platform.machine(), "")
    if sys.platform != "linux" or machine not in SHA256:
        raise ValueError(f"none is pinned for {sys.platform} {platform.machine()}")
    with urllib.request.urlopen(url.format(version=VERSION, machine=machine), timeout=TIMEOUT_S) as reply:
        content = reply.read(MAX_BYTES)
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[machine]:
        raise ValueError(f"its sha256 {found} is not the pinned one")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.extractfile("registry")
        if member is None:
            raise ValueError("its archive has no registry")
        binary = member.read()
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=program.parent, delete=False) as written:
        written.write(binary)
    Path(written.name).chmod(0o755)
    Path(written.name).replace(program)


def main() -> int:
    """Install it; a failure is told, and no failure of the caller."""
    try:
        install_registry()
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        print(f"scripts/services: no registry {VERSION}: {error}; its tests are skipped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
