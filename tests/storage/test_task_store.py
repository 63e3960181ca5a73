"""The store of A2A tasks: what it finds, how it is pruned, and to whom its file belongs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import StateDamagedError, StateError, StorageFullError
from retinue.storage.backup import back_up
from retinue.storage.state import State
from retinue.storage.task_store import StoredTask, TaskStore
from tests.support.small_disk import small_file_system


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "state")
    state.prepare()
    return state


@pytest.fixture
def store(state: State) -> Iterator[TaskStore]:
    store = TaskStore.open(state, "agent", keep=3)
    yield store
    store.close()


def make(
    task_id: str, *, ended: bool = True, owner: str = "me", agent: str = "agent", **body: Any
) -> StoredTask:
    state = "TASK_STATE_COMPLETED" if ended else "TASK_STATE_WORKING"
    return StoredTask(task_id, agent, owner, "context", state, ended, {"id": task_id, **body})


def test_a_task_is_found_by_its_owner_at_its_agent_alone(store: TaskStore) -> None:
    store.save(make("a", ended=False))
    store.save(make("a", result=1))
    assert store.find("a", "agent", "me") == {"id": "a", "result": 1}
    assert store.find("a", "agent", "you") is None
    assert store.find("a", "other", "me") is None
    assert store.list_page("agent", "you").total == 0


def test_the_oldest_ended_tasks_go_first_and_unfinished_ones_stay(store: TaskStore) -> None:
    store.save(make("open", ended=False))
    for number in range(5):
        store.save(make(f"t{number}"))
        store.save_push(f"t{number}", "p", {"url": "https://example.org"})
    store.prune()
    kept = {task["id"] for task in store.list_page("agent", "me").tasks}
    assert len(kept) == 4
    assert "open" in kept
    gone = ({f"t{number}" for number in range(5)} - kept).pop()
    assert store.list_push(gone) == []
    assert all(store.list_push(one) for one in kept - {"open"})


def test_tasks_that_are_too_old_go_when_the_store_is_opened(state: State) -> None:
    with closing(TaskStore.open(state, "agent")) as store:
        store.save(make("old"))
        store.save(make("new"))
    with closing(sqlite3.connect(state.tasks_file("agent", 1))) as connection, connection:
        connection.execute("UPDATE tasks SET updated_ms = 0 WHERE id = 'old'")
    with closing(TaskStore.open(state, "agent", keep_days=1)) as store:
        assert [task["id"] for task in store.list_page("agent", "me").tasks] == ["new"]


def test_pages_follow_each_other_without_gaps_while_tasks_are_added(store: TaskStore) -> None:
    for number in range(7):
        store.save(make(f"t{number}", ended=False))
    first = store.list_page("agent", "me", limit=3)
    store.save(make("later", ended=False))
    second = store.list_page("agent", "me", limit=3, after=first.next_after)
    third = store.list_page("agent", "me", limit=3, after=second.next_after)
    seen = [task["id"] for page in (first, second, third) for task in page.tasks]
    assert sorted(seen) == [f"t{number}" for number in range(7)]
    assert (first.total, second.total, third.next_after) == (7, 8, None)


def test_each_open_store_has_a_file_of_its_own_and_the_next_takes_the_free_one(state: State) -> None:
    with closing(TaskStore.open(state, "an/agent")) as one:
        one.save(make("a", agent="an/agent", ended=False))
        with closing(TaskStore.open(state, "an/agent")) as other:
            assert other.find("a", "an/agent", "me") is None
    with closing(TaskStore.open(state, "an/agent")) as again:
        assert again.end_unfinished(lambda body: ("TASK_STATE_FAILED", {**body, "why": "lost"})) == ["a"]
        assert again.find("a", "an/agent", "me") == {"id": "a", "why": "lost"}
        assert again.end_unfinished(lambda body: ("TASK_STATE_FAILED", body)) == []
    assert {path.name for path in state.tasks.glob("*.db")} == {"an_agent-1.db", "an_agent-2.db"}


def test_a_file_that_is_no_database_is_named_with_the_remedy(state: State) -> None:
    state.tasks.mkdir()
    state.tasks_file("agent", 1).write_bytes(b"not a database" * 100)
    with pytest.raises(StateDamagedError, match=r"agent-1\.db is damaged") as refused:
        TaskStore.open(state, "agent")
    assert "move it away" in refused.value.remedy


def save_many(store: TaskStore) -> None:
    for number in range(1000):
        store.save(make(f"b{number}"))


def test_a_full_disk_is_no_reason_to_move_accepted_tasks_away(tmp_path: Path) -> None:
    with small_file_system(tmp_path, "1m") as mounted:
        if not mounted:
            pytest.skip("NOT CHECKED: only root may mount the small file system")
        state = State(tmp_path / "home")
        state.prepare()
        with closing(TaskStore.open(state, "agent")) as store:
            store.save(make("a"))
            filler = tmp_path / "filler"
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    continue
            with pytest.raises(StorageFullError) as refused:
                save_many(store)
            assert refused.value.remedy == "free some space"
        with pytest.raises(StorageFullError):
            TaskStore.open(state, "other")
        filler.unlink()
        with closing(TaskStore.open(state, "agent")) as store:
            assert store.find("a", "agent", "me") == {"id": "a"}


def test_the_files_of_a_newer_release_are_not_to_be_moved_away(state: State) -> None:
    TaskStore.open(state, "agent").close()
    with closing(sqlite3.connect(state.tasks_file("agent", 1))) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StateError, match="has schema version 99") as refused:
        TaskStore.open(state, "agent")
    assert refused.value.remedy == "use a newer Retinue"


def test_the_files_are_private_and_part_of_a_backup(state: State, store: TaskStore, tmp_path: Path) -> None:
    store.save(make("a"))
    assert all(path.stat().st_mode & 0o077 == 0 for path in state.tasks.iterdir())
    back_up(state, tmp_path / "copy")
    with closing(TaskStore.open(State(tmp_path / "copy"), "agent")) as copy:
        assert copy.find("a", "agent", "me") == {"id": "a"}
