"""Installs a stock koi-net node in an environment of its own below ``.tools``, for tests and benchmarks.

koi-net 2.1.2 declares Python 3.10 but holds three lines that need 3.12 (``type X = …``). They are corrected
here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from scripts.environment import find_uv
from scripts.get_uv import UvNotFoundError
from scripts.package_settings import make_uv_environment, read_settings

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "interop" / "koi" / "requirements.txt"
FOLDER = ROOT / ".tools" / "stock_koi"
PROGRAM = ROOT / "tests" / "interop" / "koi" / "stock_node.py"
INSTALL_WITHIN_S = 300


class StockKoiNotInstalledError(Exception):
    """The environment could not be made, for instance because PyPI is not reachable; the text says why."""


def install_stock_koi() -> Path:
    """The Python of the environment; it is made if it is not there. Raises StockKoiNotInstalledError."""
    python = FOLDER / "bin" / "python"
    stamp = FOLDER / ".installed"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + str(ROOT).encode()).hexdigest()
    FOLDER.parent.mkdir(exist_ok=True)
    with FileLock(FOLDER.parent / "stock_koi.lock"):
        if stamp.is_file() and stamp.read_text() == wanted and python.exists():
            return python
        shutil.rmtree(FOLDER, ignore_errors=True)
        settings = read_settings()
        try:
            uv = find_uv(settings)
        except UvNotFoundError as error:
            raise StockKoiNotInstalledError(str(error)) from error
        environment = make_uv_environment(settings, os.environ)
        environment.pop("VIRTUAL_ENV", None)
        _run([str(uv), "venv", "--quiet", "--python", sys.executable, str(FOLDER)], environment)
        install = [str(uv), "pip", "install", "--quiet", "--python", str(python), "--no-deps"]
        _run([*install, "-r", str(REQUIREMENTS)], environment)
        _mend(next(FOLDER.glob("lib/python*/site-packages/koi_net/protocol/api/models.py")))
        stamp.write_text(wanted)
    return python


def _mend(models: Path) -> None:
    text = models.read_text()
    models.write_text(re.sub(r"^type (\w+) = ", r"\1 = ", text, flags=re.MULTILINE))


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_WITHIN_S,
        check=False,
    )
    if done.returncode:
        raise StockKoiNotInstalledError(f"{' '.join(command[:3])}: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    print(install_stock_koi())
