"""A short row of the fuzz of every endpoint; the long one is in ``tests/soak/test_fuzz.py``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import urllib3

from tests.processes.fuzz_attacks import encode, fill, fill_bytes
from tests.processes.fuzzing import Attacked, attacked_processes, good_client, wait_for_rest

REQUESTS = 400
NEW_DESCRIPTORS = 12
"""Databases and connections that are opened at first use."""
STALL_S = 1.0
"""Loose, because other tests share the machine; the long row measures."""


@pytest.mark.timeout(600)
def test_requests_made_by_chance_bring_no_inner_error_and_leave_nothing_open(
    tmp_path: Path, retinue_home: Path
) -> None:
    with attacked_processes(tmp_path, retinue_home) as processes:
        for one in processes.values():
            check_unchanged_requests_are_answered(one)
            asyncio.run(one.fuzz.run(seed=0, count=REQUESTS // 2))  # what is loaded at first use stays open
            before = wait_for_rest(one.pid)
            with good_client(one.url, one.pid) as client:
                asyncio.run(one.fuzz.run(seed=1, count=REQUESTS))
            assert one.fuzz.failures == []
            assert one.fuzz.statuses[200] > REQUESTS / 5
            assert client.calls > 0
            assert client.worst_s < STALL_S
            assert wait_for_rest(one.pid) <= before + NEW_DESCRIPTORS
            assert "Traceback" not in one.running.output


def check_unchanged_requests_are_answered(one: Attacked) -> None:
    """What the fuzz changes is valid to begin with."""
    known = one.fuzz.learner.learn()
    http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))
    for target in one.fuzz.targets:
        headers = {"authorization": f"Bearer {one.fuzz.token}", "content-type": target.media_type}
        headers["accept"] = "application/json, text/event-stream"
        headers |= {
            name.lower(): value
            for name, _, value in (fill(line, known).partition(": ") for line in target.headers)
        }
        for body in target.bodies:
            reply = http.request(
                target.method,
                one.url + fill(target.path, known),
                body=fill_bytes(encode(target, body), known) or None,
                headers=headers,
                redirect=False,
                preload_content=False,
            )
            reply.close()  # some are streams without an end
            assert reply.status in target.statuses, (target.method, target.path, body, reply.status)
