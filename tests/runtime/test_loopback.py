"""Where hub and agents listen without a setting."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.runtime import run_process
from retinue.runtime.agent_process import ServeOptions, serve_agent
from retinue.runtime.hub_process import HubOptions, run_hub
from retinue.runtime.launch import Address
from retinue.runtime.loading.targets import Target
from retinue.settings import Settings
from retinue.storage.state import State


class BoundError(Exception):
    """Ends a process when its address is known."""


def take_address(app: Any, listener: socket.socket, *options: Any) -> Any:
    host = listener.getsockname()[0]
    listener.close()
    raise BoundError(host)


async def test_a_hub_and_an_agent_listen_on_loopback_alone(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_process, "serving", take_address)
    state = State(retinue_home)
    with pytest.raises(BoundError, match=r"^127\.0\.0\.1$"):
        await run_hub(HubOptions(Address(port=0), bare=True), Settings(), state, print)
    target = Target(Agent("a"), ())
    with pytest.raises(BoundError, match=r"^127\.0\.0\.1$"):
        await serve_agent(target, ServeOptions(), Settings(), state, print)
