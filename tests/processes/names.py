"""What names resolve to in the programs of a test: libnss_wrapper answers, and its answers can be changed.

A name of a stranger may resolve to a public address when it is checked and to a private one when it is asked.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from tests.services import get_library


class Names:
    """The names that the programs know, with ``environment`` for them; other names are unknown to them."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hosts"
        self._times = itertools.count(1_000_000_000)
        self._set: dict[str, str] = {}
        self.set(localhost="127.0.0.1")
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": get_library("libnss_wrapper.so"),
            "NSS_WRAPPER_HOSTS": str(self._file),
        }

    def set(self, **addresses: str) -> None:
        """Let names resolve to these addresses from now on; ``_`` in a name stands for a dot."""
        self._set |= {name.replace("_", "."): address for name, address in addresses.items()}
        new = self._file.with_suffix(".new")
        new.write_text("".join(f"{address} {name}\n" for name, address in self._set.items()))
        # the library reads the file again when its time, in whole seconds, has changed
        at = next(self._times)
        os.utime(new, (at, at))
        new.replace(self._file)
