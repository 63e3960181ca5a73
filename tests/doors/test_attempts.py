"""A step that is cut off over the wire, and its repetition, which joins the call that is still running."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.mesh.observing.events import CallEndedEvent
from tests.a2a import wire as a2a
from tests.a2a.wire import message, naming
from tests.requirements import requirement
from tests.system import WAIT_S, System, Wire

SAGA = {
    "name": "order",
    "steps": [
        {
            "id": "charge",
            "skill": "charge",
            "with": {"n": 1},
            "timeout": "200ms",
            "retry": {"attempts": 3, "delay": "1ms"},
            "compensate": {"skill": "refund", "with": {"id": "${{ steps.charge.output.id }}"}},
        },
        {"id": "ship", "skill": "ship", "with": {}},
    ],
}


class Shop:
    """An agent that charges; the charge ends once ``given_up`` callers have given up."""

    def __init__(self, given_up: int) -> None:
        self.agent = Agent("shop-agent", version="1.0.0")
        self.charged: list[str | None] = []
        self.refunded: list[str] = []
        self._left = given_up
        self._gate = asyncio.Event()
        self.agent.skill(self.charge)
        self.agent.skill(self.refund)
        self.agent.skill(self.ship)

    async def charge(self, n: int, context: Context) -> dict[str, str]:
        """Charges once."""
        self.charged.append(context.idempotency_key)
        await self._gate.wait()
        return {"id": f"C{len(self.charged)}"}

    async def refund(self, id: str) -> None:  # noqa: A002  # the name of the parameter on the wire
        """Refunds a charge."""
        self.refunded.append(id)

    async def ship(self) -> None:
        """Declines."""
        raise ValueError("no ships")

    def release(self) -> None:
        self._gate.set()

    def observe(self, event: Any) -> None:
        if isinstance(event, CallEndedEvent) and event.call.skill == "charge" and event.outcome.error:
            self._left -= 1
            if not self._left:
                self._gate.set()


@requirement("P-31")
@pytest.mark.parametrize("given_up", [1, 2, 3])
async def test_a_charge_that_takes_longer_than_its_step_waits_is_charged_once_and_refunded_once(
    system: System, wire: Wire, given_up: int
) -> None:
    """It ends after the first, the second or the last attempt was given up."""
    shop = Shop(given_up)
    hub = await system.start_hub()
    await system.start_agent(shop.agent, observers=[shop.observe])
    await hub.mesh.directory.refresh()
    arguments = {"workflow": SAGA, "input": {}, "run": "r"}
    reply = await wire.call(hub.url, "orchestrate_workflow", arguments, authorization=system.token)
    (row,) = reply.error["data"]["compensated"]
    assert (row["step"], row["ok"]) == ("charge", True), row
    assert (len(shop.charged), shop.refunded) == (1, ["C1"])
    assert "undo" not in reply.error["data"]


@pytest.mark.parametrize("endpoint", ["execute", "a2a"])
async def test_a_repeated_key_joins_the_running_call_whose_client_has_gone(
    system: System, wire: Wire, endpoint: str
) -> None:
    shop = Shop(0)
    served = await system.start_agent(shop.agent)
    headers = {"idempotency-key": "k", "authorization": system.token}
    if endpoint == "a2a":
        sent = {"message": message(naming("charge", n=1))}
        first = asyncio.create_task(a2a.ask(wire, served.url, "SendMessage", sent, **headers))
    else:
        first = asyncio.create_task(wire.call(served.url, "charge", {"n": 1}, **headers))
    async with asyncio.timeout(WAIT_S):
        while not shop.charged:
            await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.create_task(wire.call(served.url, "charge", {"n": 1}, **headers))
    await asyncio.sleep(0.05)
    shop.release()
    assert (await again).result == {"id": "C1"}
    assert shop.charged == ["k"]
