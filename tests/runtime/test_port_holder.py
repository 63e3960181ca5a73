"""A port in use names the program that holds it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from retinue.core.errors import PortInUseError
from retinue.runtime.machine.port_holder import find_port_holder
from retinue.runtime.serving import bind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows it")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_in_use_names_the_program_that_listens(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"is in use by .+ \(pid {os.getpid()}\)"):
            bind(host, port)
    assert find_port_holder(port) is None


def test_nothing_is_named_where_the_system_shows_nothing(tmp_path: Path) -> None:
    assert find_port_holder(1, tmp_path) is None
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:0001 00000000:0000 0A 0:0 0:0 0 0 0 99 1"
    (tmp_path / "net" / "tcp").write_text(f"heading\n{line}\n")
    assert find_port_holder(1, tmp_path) is None, "the process of another user"
