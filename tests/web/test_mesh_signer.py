"""The key of a mesh in its state folder, and what processes with and without it make of a trace."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from retinue.core.allowance import Allowance
from retinue.core.call import TraceContext
from retinue.core.errors import StateDamagedError
from retinue.storage.state import State
from retinue.web.mesh_tokens import MeshSigner

TRACE = TraceContext("t", 2, trusted=True)


def test_the_key_is_made_once_for_all_processes_of_a_state_and_readable_by_its_owner_only(
    tmp_path: Path,
) -> None:
    key = State(tmp_path / "s").mesh_key()
    assert State(tmp_path / "s").mesh_key() == key
    assert State(tmp_path / "other").mesh_key() != key
    assert len(key) >= 32
    file = tmp_path / "s" / "keys" / "mesh.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert key.decode() != State(tmp_path / "s").local_token()


def test_a_damaged_key_is_said_so_and_left_alone(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.mesh_key()
    (tmp_path / "keys" / "mesh.key").write_text("short")
    with pytest.raises(StateDamagedError, match="no key"):
        state.mesh_key()


def test_two_equal_messages_of_a_limited_chain_in_one_millisecond_are_both_believed() -> None:
    signer, receiver = MeshSigner(b"k" * 32, clock=lambda: 100.0), MeshSigner(b"k" * 32, clock=lambda: 100.0)
    limited = TRACE.with_allowance(Allowance(100, None))
    for _ in range(20):
        assert receiver.verify(signer.sign(limited, "b", "work"), "b", "work") is None


def test_processes_of_one_state_believe_each_other_once(tmp_path: Path) -> None:
    here, there = MeshSigner.of(State(tmp_path)), MeshSigner.of(State(tmp_path))
    sent = here.sign(TRACE, "b", "work")
    assert there.verify(sent, "b", "work") is None
    assert there.verify(sent, "b", "work") == "it was sent before"
    assert there.verify(sent, "b", "other") == "it does not match the call"
    assert there.verify(TRACE, "b", "work") == "it is not signed"


def test_a_process_of_another_state_does_not(tmp_path: Path) -> None:
    here, there = MeshSigner.of(State(tmp_path / "a")), MeshSigner.of(State(tmp_path / "b"))
    assert there.verify(here.sign(TRACE, "b", "work"), "b", "work") == "it comes from another mesh"


def test_what_is_sent_later_is_too_old(tmp_path: Path) -> None:
    key = State(tmp_path).mesh_key()
    old = MeshSigner(key, clock=lambda: time.time() - 100).sign(TRACE, "", "work")
    assert MeshSigner(key).verify(old, "", "work") == "it is too old"


def test_nobody_vouches_for_the_claims_of_a_stranger(tmp_path: Path) -> None:
    signer = MeshSigner.of(State(tmp_path))
    for claim in (TraceContext("t", 2), TraceContext("t", depth_given=False, trusted=True)):
        assert signer.sign(claim, "b", "work") is claim
