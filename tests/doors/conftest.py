"""What the tests of the endpoints start from: a system of this test alone, and a client of its wires."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from retinue.storage.state import State
from tests.doors.bench import Bench
from tests.doors.office import Office
from tests.system import System, Wire, open_system, open_wire


@pytest.fixture
async def system(retinue_home: Path) -> AsyncIterator[System]:
    async with open_system(State(retinue_home)) as system:
        yield system


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with open_wire() as wire:
        yield wire


@pytest.fixture
async def office(system: System, wire: Wire) -> Office:
    bench = Bench()
    served = await system.start_agent(bench.agent)
    return Office(bench, served, await system.start_hub(), system, wire)
