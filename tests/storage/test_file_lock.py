"""A process that is frozen while it holds a lock file stops no other process without saying so."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from retinue.core.errors import StateError
from retinue.storage import files, mesh_key
from retinue.storage.files import hold_lock
from retinue.web.issued_tokens import TokenFile

_HOLDER = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells the holder of a lock")
def test_the_process_that_holds_a_lock_is_named_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    holding = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateError) as refused, hold_lock(path, mode=0o600, within_s=0.05):
            pass
        holder.stdin.close()
    assert refused.value.message == f"process {holder.pid} has held {path} for more than 0.05 seconds"
    assert f"kill -CONT {holder.pid}" in refused.value.remedy
    with hold_lock(path, mode=0o600, within_s=5.0):
        pass


def test_a_lock_whose_holder_the_kernel_does_not_tell_is_named_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_find_holder", lambda path: None)
    path = tmp_path / ".lock"
    with (
        FileLock(path),
        pytest.raises(StateError, match="another process") as refused,
        hold_lock(path, mode=0o600, within_s=0.01),
    ):
        pass
    assert f"fuser {path}" in refused.value.remedy


def test_keys_and_tokens_are_not_waited_for_without_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_key, "hold_lock", partial(hold_lock, within_s=0.01))
    with FileLock(tmp_path / ".lock"):
        with pytest.raises(StateError, match=rf"has held {tmp_path}/\.lock"):
            mesh_key.mesh_key(tmp_path)
        with pytest.raises(StateError, match=rf"has held {tmp_path}/\.lock"):
            TokenFile(tmp_path).merge((), (), within_s=0.01)
    assert mesh_key.mesh_key(tmp_path)


def test_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    order: list[str] = []

    def work(name: str) -> None:
        with hold_lock(tmp_path / ".lock", mode=0o600):
            order.extend([name, name])

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [order[0], order[2], order[4]] == [order[1], order[3], order[5]]
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600
