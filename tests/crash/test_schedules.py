"""A hub that is killed around the times of a schedule starts one run for each time, and none twice."""

from __future__ import annotations

import signal
import time
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from retinue.workflows.runs.records import RunRecord
from tests.crash.test_programs import watch_runs
from tests.processes.running import execute, program, wait_until

AGENT = '''
from pathlib import Path

from retinue import Agent, Context

agent = Agent("worker-agent", version="1.0.0")


@agent.skill
async def work(ctx: Context) -> None:
    """Notes the key of each call."""
    with (Path(__file__).parent / "log").open("a") as log:
        log.write(f"{ctx.idempotency_key}\\n")
'''

FLOW = {
    "name": "often",
    "schedule": {"every": "4s", "missed": "all", "overlap": "queue"},
    "steps": [{"id": "a", "skill": "work", "with": {}, "retry": {"attempts": 3}}],
}


@pytest.mark.timeout(600)
async def test_a_hub_killed_around_the_times_of_a_schedule_starts_one_run_for_each(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "worker.py").write_text(AGENT)
    folder = retinue_home / "workflows"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "often.json").write_bytes(orjson.dumps(FLOW))
    log = tmp_path / "log"

    def read_keys() -> list[str]:
        return log.read_text().split() if log.exists() else []

    with program("serve", "worker.py", cwd=tmp_path) as served:
        served.wait_for("published")
        token = (retinue_home / "keys" / "local.token").read_text()
        for turn in range(3):
            with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
                url = hub.url_in("hub at")
                if turn == 0:
                    added = execute(url, "add_schedule", {"workflow": "often"}, token)
                    assert added["result"]["status"] == "active", added
                begun = len(read_keys())
                wait_until(lambda begun=begun: len(read_keys()) > begun, "a run begins")  # type: ignore[misc]
                if turn:
                    (row,) = execute(url, "list_schedules", {}, token)["result"]["schedules"]
                    until = datetime.fromisoformat(row["next"]).timestamp()
                    wait_until(lambda until=until: time.time() >= until, "the time comes")  # type: ignore[misc]
                hub.send(signal.SIGKILL)
                hub.wait()
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            url = hub.url_in("hub at")
            begun = len(read_keys())
            wait_until(lambda: len(read_keys()) > begun + 1, "runs begin")
            execute(url, "change_schedule", {"schedule": "often", "change": "remove"}, token)
            records = await finish_all(retinue_home)
    assert {record.status for record in records} == {"done"}
    ids = [record.id for record in records]
    times = sorted(datetime.strptime(run, "often:%Y%m%dT%H%M%SZ").timestamp() for run in ids)
    steps = [after - before for before, after in pairwise(times)]
    assert steps == [4.0] * len(steps), "no time is left out, none comes twice"
    keys = Counter(read_keys())
    assert set(keys) == {f"{run}/a" for run in ids}
    # a call that the hub did not see end is made again with its key, which the agent knows
    assert set(keys.values()) == {1}


async def finish_all(home: Path) -> list[RunRecord]:
    """All runs of a state folder when they have ended."""
    runs = watch_runs(home)
    try:
        return [await runs.finish(record.id) for record in await runs.list_all()]
    finally:
        await runs.aclose()
