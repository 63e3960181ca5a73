"""The state folder: where it is, who may write what, and how the running hub is found."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import retinue
from retinue.core.errors import HubRunningError, StateDamagedError, StateError
from retinue.storage.state import State, find_state_folder


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


def token_of(root: str) -> str:
    return State(Path(root)).local_token()


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


# where it is


def test_retinue_home_comes_first(tmp_path: Path) -> None:
    (tmp_path / ".retinue").mkdir()
    environ = {"RETINUE_HOME": str(tmp_path / "given"), "XDG_STATE_HOME": str(tmp_path / "xdg")}
    assert find_state_folder(environ, tmp_path) == tmp_path / "given"


def test_a_relative_or_home_like_retinue_home_becomes_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert find_state_folder({"RETINUE_HOME": "~/r"}, Path("/")) == Path("/somewhere/r")
    assert find_state_folder({"RETINUE_HOME": "r"}, Path("/")) == Path.cwd() / "r"


def test_then_comes_the_nearest_folder_upward(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / ".retinue").mkdir()
    assert find_state_folder({}, deep) == tmp_path / ".retinue"
    (tmp_path / "a" / ".retinue").mkdir()
    assert find_state_folder({}, deep) == tmp_path / "a" / ".retinue"


def test_a_file_of_that_name_is_no_state_folder(tmp_path: Path) -> None:
    (tmp_path / ".retinue").write_text("")
    assert find_state_folder({"XDG_STATE_HOME": "/x"}, tmp_path) == Path("/x/retinue")


def test_last_comes_the_state_folder_of_the_user(tmp_path: Path) -> None:
    assert find_state_folder({"XDG_STATE_HOME": "/x", "HOME": "/h"}, tmp_path) == Path("/x/retinue")
    assert find_state_folder({"HOME": "/h"}, tmp_path) == Path("/h/.local/state/retinue")


def test_everything_lies_below_the_root(state: State) -> None:
    root = state.root
    assert state.registry == root / "registry"
    assert state.database == root / "retinue.db"
    assert state.keys == root / "keys"
    assert state.hub_file == root / "hub.json"


def test_a_file_in_the_place_of_the_folder_is_told_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    for root in (tmp_path / "f", tmp_path / "f" / "deeper"):
        with pytest.raises(StateDamagedError) as caught:
            State(root).prepare()
        assert "RETINUE_HOME" in caught.value.remedy
    assert (tmp_path / "f").read_text() == "mine"


# the tokens of this machine


@pytest.mark.parametrize(
    ("name", "read"), [("local.token", State.local_token), ("owner.token", State.owner_token)]
)
def test_the_token_is_made_once_and_belongs_to_its_owner_alone(
    state: State, name: str, read: Callable[[State], str]
) -> None:
    token = read(state)
    assert len(token) >= 32
    assert token == read(State(state.root)) == read(state)
    path = state.keys / name
    assert path.read_text() == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert state.keys.stat().st_mode & 0o077 == 0


def test_only_the_hub_and_the_commands_of_a_person_read_the_token_of_the_owner() -> None:
    """Whoever starts a process or writes the configuration of a client reads another token."""
    package = Path(retinue.__file__).parent
    readers = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if ".owner_token()" in file.read_text("utf-8")
    }
    assert readers == {"runtime/access.py", "cli/session.py"}
    callers = {
        file.relative_to(package).as_posix()
        for file in (package / "cli").rglob("*.py")
        if re.search(r"as_owner[(=]", file.read_text("utf-8"))
    }
    commands = {"calling/approvals.py", "chat/command.py", "managing/dashboard.py", "managing/policy.py"}
    commands |= {"managing/policy_history.py", "managing/policy_profiles.py"}
    assert callers == {"cli/session.py", *(f"cli/{command}" for command in commands)}


def test_two_states_have_two_tokens(tmp_path: Path) -> None:
    assert State(tmp_path / "a").local_token() != State(tmp_path / "b").local_token()


def test_many_processes_that_ask_at_once_get_one_token(state: State) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        tokens = pool.map(token_of, [str(state.root)] * 12, chunksize=1)
    assert len(set(tokens)) == 1
    assert list(state.keys.glob("*.tmp")) == []


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe" * 40])
def test_a_damaged_token_is_told_and_left_alone(state: State, content: bytes) -> None:
    path = state.keys / "local.token"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(StateDamagedError) as caught:
        state.local_token()
    assert str(path) in caught.value.message
    assert "remove the file" in caught.value.remedy
    assert path.read_bytes() == content


def test_a_token_with_a_line_end_is_the_same_token(state: State) -> None:
    token = state.local_token()
    (state.keys / "local.token").write_text(token + "\n")
    assert state.local_token() == token


def test_a_place_where_no_token_can_be_kept_is_told(state: State) -> None:
    state.prepare()
    state.keys.write_text("a file")
    with pytest.raises(StateError):
        state.local_token()


# the hub


def test_a_hub_is_found_by_what_it_wrote_until_it_takes_that_back(state: State) -> None:
    assert state.read_hub() is None
    state.prepare()
    state.write_hub("http://127.0.0.1:9000")
    hub = state.read_hub()
    assert hub is not None
    assert (hub.url, hub.pid) == ("http://127.0.0.1:9000", os.getpid())
    assert hub.started_at
    assert state.hub_file.stat().st_mode & 0o777 == 0o600
    state.forget_hub()
    state.forget_hub()
    assert state.read_hub() is None


def test_what_a_killed_hub_left_counts_as_none(state: State) -> None:
    state.prepare()
    state.hub_file.write_bytes(orjson.dumps({"url": "http://x", "pid": dead_pid()}))
    assert state.read_hub() is None


def test_a_process_that_took_over_the_number_of_a_killed_hub_is_no_hub(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux":
        monkeypatch.setattr("retinue.storage.state._birth_of", lambda pid: pid * 7)
    state.prepare()
    state.write_hub("http://127.0.0.1:9000")
    address = orjson.loads(state.hub_file.read_bytes())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        state.hub_file.write_bytes(orjson.dumps({**address, "pid": other.pid}))
        assert state.read_hub() is None
        state.hub_file.write_bytes(orjson.dumps({"url": "http://x", "pid": other.pid}))
        assert state.read_hub() is not None
        other.kill()


def test_a_file_in_the_place_of_the_folder_holds_no_hub(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    assert State(tmp_path / "f").read_hub() is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"{}",
        b'{"url": "http://x"}',
        b'{"url": "http://x", "pid": "many"}',
        b'{"url": "http://x", "pid": null}',
        b'{"url": "http://x", "pid": 0}',
        b'{"url": "http://x", "pid": -1}',
        b'{"url": "http://x", "pid": 1e300}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_hub_file_is_told_with_its_remedy(state: State, content: bytes) -> None:
    state.prepare()
    state.hub_file.write_bytes(content)
    with pytest.raises(StateDamagedError) as caught:
        state.read_hub()
    assert str(state.hub_file) in caught.value.message
    assert "retinue hub" in caught.value.remedy
    assert state.hub_file.read_bytes() == content


def test_a_state_has_one_owner_at_a_time(state: State) -> None:
    with state.own():
        with pytest.raises(HubRunningError, match="still starting"), State(state.root).own():
            pass
        state.write_hub("http://127.0.0.1:9123")
        with pytest.raises(HubRunningError) as caught, State(state.root).own():
            pass
        assert "http://127.0.0.1:9123" in caught.value.message
        assert str(os.getpid()) in caught.value.message
        assert "RETINUE_HOME" in caught.value.remedy
    with State(state.root).own():
        pass


def test_an_owner_that_fails_leaves_the_state_free(state: State) -> None:
    with pytest.raises(ValueError, match="boom"), state.own():
        raise ValueError("boom")
    with state.own():
        pass


def test_another_process_is_kept_out_too(state: State) -> None:
    program = (
        "import sys; from pathlib import Path; from retinue.storage.state import State\n"
        "from retinue.core.errors import HubRunningError\n"
        "try:\n"
        "    with State(Path(sys.argv[1])).own(): print('in')\n"
        "except HubRunningError: print('out')"
    )
    with state.own():
        found = subprocess.run(
            [sys.executable, "-c", program, str(state.root)], capture_output=True, text=True, check=True
        )
    assert found.stdout == "out\n"


def test_the_address_of_another_hub_is_not_taken_back(state: State) -> None:
    state.prepare()
    theirs = orjson.dumps({"url": "http://x", "pid": os.getpid() + 1})
    state.hub_file.write_bytes(theirs)
    state.forget_hub()
    assert state.hub_file.read_bytes() == theirs
    state.hub_file.write_bytes(b"{")
    state.forget_hub()
    assert not state.hub_file.exists()


def test_a_folder_made_anew_is_another_one(state: State) -> None:
    assert state.identity() is None
    with state.own():
        before = state.identity()
        assert before == State(state.root).identity() is not None
        shutil.rmtree(state.root)
        assert state.identity() is None
        with State(state.root).own():
            assert state.identity() not in (None, before)
