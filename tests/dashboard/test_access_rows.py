"""Audit rows of rejected tokens and of sign-ins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from retinue.core.errors import NotAuthenticatedError
from retinue.mesh.observing.access_rows import ROWS_PER_MINUTE, AccessRows
from retinue.storage.audit_log import AuditLog
from retinue.storage.state import State
from tests.mesh.scripted import FakeClock
from tests.system import open_system, open_wire


def test_an_address_leaves_only_so_many_rows_a_minute_and_others_theirs() -> None:
    rows: list[Mapping[str, Any]] = []
    clock = FakeClock()
    access = AccessRows(rows.append, monotonic=clock)
    for _ in range(100):
        access.note("10.0.0.1", "/mcp", None, NotAuthenticatedError("unknown"))
    assert len(rows) == ROWS_PER_MINUTE
    access.note("10.0.0.2", "/mcp", None, NotAuthenticatedError("unknown"))
    assert rows[-1]["address"] == "10.0.0.2"
    clock.pass_time(61)
    access.note("10.0.0.1", "/mcp", None, NotAuthenticatedError("unknown"))
    assert len(rows) == ROWS_PER_MINUTE + 2


async def test_rejected_tokens_and_sign_ins_leave_rows_without_the_token(tmp_path: Path) -> None:
    state = State(tmp_path)
    async with open_system(state) as system, open_wire() as wire:
        hub = await system.start_hub(dashboard=True)
        secret = "rtn_00000000_secretsecretsecretsecretsecret"
        assert (await wire.call(hub.url, "list_agents", authorization=f"Bearer {secret}")).status == 401
        async with aiohttp.ClientSession() as browser:
            for token in (secret, state.local_token()):
                url, headers = f"{hub.url}/ui/sign-in", {"origin": hub.url}
                async with browser.post(
                    url, data={"token": token}, headers=headers, allow_redirects=False
                ) as reply:
                    assert reply.status == (403 if token == secret else 303)
        hub.audit.flush()
        rows = [row for row in AuditLog(state.database).read_events(last=50) if "ACCESS" in row["type"]]
    assert [(row["type"], row["path"], row["caller"], row.get("error")) for row in rows] == [
        ("ACCESS:REJECTED", "/execute", None, "not_authenticated"),
        ("ACCESS:REJECTED", "/ui/sign-in", None, "not_authenticated"),
        ("ACCESS:SIGNED_IN", "/ui/sign-in", "local", None),
    ]
    assert {row["address"] for row in rows} == {"127.0.0.1"}
    assert b"secretsecret" not in orjson.dumps(rows)
