"""What the tests with programs of others start from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from retinue.storage.state import State
from tests.interop.relay import Relay
from tests.interop.upstream import Everything, run_everything
from tests.system import System, Wire, open_system, open_wire


@pytest.fixture(scope="session")
def everything_process() -> Iterator[Everything]:
    with run_everything() as everything:
        yield everything


@pytest.fixture
async def everything(everything_process: Everything) -> Everything:
    await everything_process.forget()
    return everything_process


@pytest.fixture
async def system(retinue_home: Path) -> AsyncIterator[System]:
    async with open_system(State(retinue_home)) as system:
        yield system


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with open_wire() as wire:
        yield wire


@pytest.fixture
async def relay(system: System, wire: Wire, everything: Everything) -> Relay:
    await everything.publish(system)
    return Relay(system, await system.start_hub(), wire, everything)
