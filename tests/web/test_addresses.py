"""What a Host header means: names, addresses, and the socket at which a request came in."""

from __future__ import annotations

import pytest

from retinue.web.addresses import names_socket
from tests.requirements import requirement

NAMES = frozenset({"agents.example.org"})


@requirement("S-17")
@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("10.0.0.7:8001", ("10.0.0.7", 8001)),
        ("10.0.0.7:8001", ("::ffff:10.0.0.7", 8001)),
        ("10.0.0.7", ("10.0.0.7", 80)),
        ("[fd00::7]:8001", ("fd00:0::7", 8001)),
        ("[fd00::7]", ("fd00::7", 80)),
        ("localhost:8001", ("127.0.0.1", 8001)),
        ("[::1]:8001", ("127.0.0.1", 8001)),
        ("agents.example.org", ("10.0.0.7", 8001)),
        ("AGENTS.example.org:443", ("10.0.0.7", 8001)),
        ("agents.example.org:443", None),
    ],
)
def test_a_host_means_the_socket_by_its_address_and_port_or_by_a_name_that_was_given(
    host: str, server: tuple[str, int | None] | None
) -> None:
    assert names_socket(host.encode(), server, NAMES)


@requirement("S-17")
@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("10.0.0.7:6666", ("10.0.0.7", 8001)),
        ("10.0.0.7", ("10.0.0.7", 8001)),
        ("6.6.6.6:8001", ("10.0.0.7", 8001)),
        ("127.0.0.1:8001", ("10.0.0.7", 8001)),
        ("127.0.0.1:6666", ("127.0.0.1", 8001)),
        ("localhost:8001", ("10.0.0.7", 8001)),
        ("evil.example:8001", ("10.0.0.7", 8001)),
        ("10.0.0.7:8001x", ("10.0.0.7", 8001)),
        ("10.0.0.7:٨٠٠١", ("10.0.0.7", 8001)),
        ("10.0.0.7:" + "8" * 5000, ("10.0.0.7", 8001)),
        ("", ("10.0.0.7", 80)),
        ("10.0.0.7:8001", None),
        ("10.0.0.7:80", ("/run/agent.sock", None)),
    ],
)
def test_any_other_host_is_the_senders_word(host: str, server: tuple[str, int | None] | None) -> None:
    assert not names_socket(host.encode(), server, NAMES)


def test_no_host_means_no_socket() -> None:
    assert not names_socket(None, ("10.0.0.7", 80), frozenset())
