"""Installs a stock koi-net node in an environment of its own, for tests and benchmarks.

koi-net 2.1.2 declares Python 3.10 but holds three lines that need 3.12 (``type X = …``). They are corrected
here.
"""

from __future__ import annotations

import re
from pathlib import Path

from scripts.peer_environment import ROOT, install_peer

REQUIREMENTS = ROOT / "tests" / "interop" / "koi" / "requirements.txt"
PROGRAM = ROOT / "tests" / "interop" / "koi" / "stock_node.py"


def install_stock_koi() -> Path:
    """The Python of the environment; it is made if it is not there. Raises PeerNotInstalledError."""
    return install_peer("stock_koi", REQUIREMENTS, _mend)


def _mend(folder: Path) -> None:
    models = next(folder.glob("lib/python*/site-packages/koi_net/protocol/api/models.py"))
    text = models.read_text()
    models.write_text(re.sub(r"^type (\w+) = ", r"\1 = ", text, flags=re.MULTILINE))


if __name__ == "__main__":
    print(install_stock_koi())
