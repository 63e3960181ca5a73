"""What the tests with programs of others start from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.relay import Relay
from tests.interop.upstream import Everything, run_everything
from tests.system import System, Wire


@pytest.fixture(scope="session")
def everything_process() -> Iterator[Everything]:
    with run_everything() as everything:
        yield everything


@pytest.fixture
async def everything(everything_process: Everything) -> Everything:
    await everything_process.forget()
    return everything_process


@pytest.fixture
async def relay(system: System, wire: Wire, everything: Everything) -> Relay:
    await everything.publish(system)
    return Relay(system, await system.start_hub(), wire, everything)
