"""What several tests of processes need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ports import reserved_port


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine for a program of the test."""
    with reserved_port() as port:
        yield port
