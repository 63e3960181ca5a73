"""A program follows a run while its hub is killed and starts again elsewhere."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import retinue
from retinue.client.updates import RunUpdate
from tests.processes.running import program

FLOW = {
    "name": "two-waits",
    "steps": [
        {"id": "first", "wait_for": {"topic": "first", "timeout": "1h"}},
        {"id": "second", "wait_for": {"topic": "second", "timeout": "1h"}},
    ],
    "output": "${{ steps.second.output }}",
}


def test_events_go_on_after_a_hub_was_killed_and_none_comes_twice(tmp_path: Path) -> None:
    updates: list[RunUpdate] = []
    with closing(retinue.connect_sync(retries=8)) as mesh:  # no hub runs yet
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            hub.wait_for("http://")
            run = mesh.start(FLOW, id="r")
            events = run.events()
            for update in events:
                updates.append(update)
                if (update.kind, update.step) == ("step_started", "first"):
                    break
            hub.send(signal.SIGKILL)
            hub.wait()
        events = run.events(after=updates[-1].seq)
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            hub.wait_for("http://")
            run.signal("first")
            for update in events:
                updates.append(update)
                if (update.kind, update.step) == ("step_started", "second"):
                    hub.send(signal.SIGKILL)
                    hub.wait()
                    break
            following = iter(events)
            with program("hub", "--bare", "--port", "0", cwd=tmp_path) as third:
                third.wait_for("http://")
                run.signal("second", 7)
                updates += list(following)
                assert run.result(timeout_s=30) == 7
    numbers = [update.seq for update in updates]
    assert numbers == sorted(set(numbers))
    steps = [(update.kind, update.step) for update in updates]
    assert steps.count(("step_finished", "first")) == 1
    assert steps.count(("step_finished", "second")) == 1
    assert updates[-1].kind == "run_finished"
