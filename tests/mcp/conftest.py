"""What the tests of the MCP endpoint start from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from retinue.storage.state import State
from tests.system import System, Wire, open_system, open_wire


@pytest.fixture
async def system(retinue_home: Path) -> AsyncIterator[System]:
    async with open_system(State(retinue_home)) as system:
        yield system


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with open_wire() as wire:
        yield wire
