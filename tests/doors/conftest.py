"""What the tests of the endpoints start from: a system of this test alone, and a client of its wires."""

from __future__ import annotations

import pytest

from tests.doors.bench import Bench
from tests.doors.office import Office
from tests.system import System, Wire


@pytest.fixture
async def office(system: System, wire: Wire) -> Office:
    bench = Bench()
    served = await system.start_agent(bench.agent)
    return Office(bench, served, await system.start_hub(), system, wire)
