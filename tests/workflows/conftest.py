"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.workflows.implementations import Open, opened_here
from tests.workflows.running import Bench, open_bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


@pytest.fixture
def open_runs() -> Open:
    """Opens the implementation of the ports that is under test in this process."""
    return opened_here()
