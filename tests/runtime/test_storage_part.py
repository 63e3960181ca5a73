"""A state folder that takes no files is named at ``/ready``; the process answers calls all the same."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from retinue.authoring.agent import Agent
from retinue.core.errors import StateError, StorageFullError
from retinue.runtime.agent_process import ServeOptions, serve_agent
from retinue.runtime.launch import Address
from retinue.runtime.loading.targets import Target
from retinue.runtime.parts import storage
from retinue.runtime.parts.storage import Room
from retinue.settings import Settings
from retinue.storage.state import State
from tests.runtime.composition.live_process import ProcessStarter
from tests.system import Wire


def refuse(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file that is written fail with an error of the system."""

    def fail(folder: Path) -> None:
        raise OSError(number, "refused", str(folder))

    monkeypatch.setattr(storage, "check_room", fail)


async def test_a_folder_that_is_there_and_takes_files_is_no_problem(tmp_path: Path) -> None:
    assert await Room(tmp_path).find_error() is None
    assert await Room(tmp_path / "not-yet").find_error() is None


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EFBIG, StorageFullError),
        (errno.EROFS, StateError),
    ],
)
async def test_why_a_folder_takes_no_files_is_said(
    number: int, kind: type[StateError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(number, monkeypatch)
    error = await Room(tmp_path).find_error()
    assert type(error) is kind
    assert str(tmp_path) in error.message


async def test_a_process_without_room_is_degraded_and_answers_calls(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    agent = Agent("full-agent", version="1.0.0")

    @agent.skill(expose=True)
    async def count() -> int:
        """Counts."""
        return 1

    state, options = State(retinue_home), ServeOptions(Address("127.0.0.1", 0), publish=False)
    refuse(errno.ENOSPC, monkeypatch)
    async with ProcessStarter(monkeypatch).running(
        lambda echo: serve_agent(Target(agent, ()), options, Settings(), state, echo)
    ) as process:
        reply = await wire.get(f"{process.url}/ready", authorization=f"Bearer {state.local_token()}")
        assert (reply.status, reply.json["status"]) == (200, "degraded")
        (problem,) = reply.json["problems"]
        assert problem["what"] == "storage"
        assert problem["reason"].startswith(f"no space left for {retinue_home}")
        assert problem["reason"].endswith("free some space")
        assert (await wire.call(process.url, "count")).result == 1
