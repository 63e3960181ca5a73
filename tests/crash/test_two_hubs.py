"""Two hubs with folders of their own on one Postgres: a time and an event start one run, at whichever hub."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from retinue.hub.scheduling.signatures import sign
from tests.crash.postgres import Postgres
from tests.crash.test_nodes import looking_at
from tests.processes.running import execute, program, wait_until

STEPS = [{"id": "a", "wait": "10ms"}]

WORKFLOWS: dict[str, dict[str, Any]] = {
    "often": {"schedule": {"every": "2s", "missed": "all", "overlap": "queue"}, "steps": STEPS},
    "deploy": {"on": "webhook", "steps": STEPS},
}

EVENTS = [f"evt_{number}" for number in range(5)]

pytestmark = pytest.mark.crash


def make_home(tmp_path: Path, name: str, database: str) -> dict[str, str]:
    """The environment of one hub, which has the workflows in its own folder."""
    folder = tmp_path / name / "workflows"
    folder.mkdir(parents=True)
    for workflow, definition in WORKFLOWS.items():
        (folder / f"{workflow}.json").write_bytes(orjson.dumps({"name": workflow, **definition}))
    return {"RETINUE_HOME": str(tmp_path / name), "RETINUE_DATABASE": database}


def send(url: str, added: dict[str, Any], event: str, sent_at: int) -> tuple[int, str]:
    """Send an event to a hub; gives the status and the run."""
    body = b"{}"
    headers = {
        "content-type": "application/json",
        "webhook-id": event,
        "webhook-timestamp": str(sent_at),
        "webhook-signature": sign(added["secret"], event, sent_at, body),
    }
    path = added["url"].partition("/webhooks/")[2]
    with urllib3.PoolManager() as pool:
        reply = pool.request(
            "POST", f"{url}/webhooks/{path}", body=body, headers=headers, timeout=60, retries=False
        )
    answer = reply.json()
    return reply.status, answer["run"] if "run" in answer else answer["data"]["run"]


async def test_each_time_and_each_event_starts_one_run_at_two_hubs(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = postgres.create_database()
    first, second = (make_home(tmp_path, name, database) for name in ("first", "second"))
    bare = ("hub", "--bare", "--port", "0")
    with (
        program(*bare, cwd=tmp_path, environment=first) as hub,
        program(*bare, cwd=tmp_path, environment=second) as other,
    ):
        urls = [hub.url_in("hub at"), other.url_in("hub at")]
        token = (tmp_path / "first" / "keys" / "local.token").read_text()
        added = execute(urls[0], "add_schedule", {"workflow": "deploy"}, token)["result"]
        assert execute(urls[0], "add_schedule", {"workflow": "often"}, token)["result"]["status"] == "active"
        sent_at = int(time.time())
        with ThreadPoolExecutor(10) as threads:
            sendings = [threads.submit(send, url, added, event, sent_at) for event in EVENTS for url in urls]
        answers = sorted(sending.result() for sending in sendings)
        # one hub starts the run, and the other knows the request
        assert answers == sorted((status, f"deploy:{event}") for event in EVENTS for status in (202, 409))

        def list_runs() -> list[str]:
            rows = execute(urls[0], "list_runs", {"limit": 100}, token)["result"]["runs"]
            return [row["run"] for row in rows]

        def count_times() -> int:
            return sum(run.startswith("often:") for run in list_runs())

        wait_until(lambda: count_times() >= 4, "four times have come")
        execute(urls[0], "change_schedule", {"schedule": "often", "change": "remove"}, token)
        seen = list_runs()
    async with looking_at(database, tmp_path) as runs:
        records = [await runs.get(run) for run in seen]
        stored = [record.id for record in await runs.list_all()]
    assert len(stored) == len(set(stored))
    assert sorted(run for run in stored if run.startswith("deploy:")) == [f"deploy:{e}" for e in EVENTS]
    times = sorted(
        datetime.strptime(run, "often:%Y%m%dT%H%M%SZ").timestamp()
        for run in stored
        if run.startswith("often:")
    )
    assert [after - before for before, after in pairwise(times)] == [2.0] * (len(times) - 1)
    assert {record.request.name for record in records} == set(WORKFLOWS)
