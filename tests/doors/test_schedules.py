"""Schedules at a hub: added by callers over /execute, shown in the dashboard, bound to issued tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from retinue.oci.registry import publish_workflow
from retinue.runtime.parts.schedules import find_end_of_rights
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from retinue.workflows.schedules import ScheduleOwner
from tests.dashboard.site import Site
from tests.system import NOON, open_system, open_wire

NIGHTLY = {
    "name": "nightly",
    "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
    "steps": [{"id": "a", "skill": "none", "with": {}}],
}
MESH = frozenset({"exposed", "mesh"})


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        await publish_workflow(system.home, "nightly", orjson.dumps(NIGHTLY), created=NOON)
        yield Site(system, await system.start_hub(dashboard=True), wire, [])


async def test_a_schedule_is_added_listed_and_shown_on_the_page_of_workflows(site: Site) -> None:
    own = site.system.token
    assert (await site.wire.call(site.hub.url, "list_schedules", {}, authorization=own)).result == {
        "schedules": []
    }
    added = await site.wire.call(site.hub.url, "add_schedule", {"workflow": "nightly"}, authorization=own)
    assert added.result["status"] == "active"
    assert added.result["next"].endswith(("03:00:00+01:00", "03:00:00+02:00"))
    page = (await site.read("/ui/workflows", own)).body.decode()
    for text in ("Schedules", "0 3 * * *", "Europe/Berlin", "active", added.result["next"]):
        assert text in page
    changed = {**NIGHTLY, "description": "does something else"}
    await publish_workflow(site.system.home, "nightly", orjson.dumps(changed), created=NOON)
    page = (await site.read("/ui/workflows", own)).body.decode()
    assert "broken" in page
    assert "was changed since the schedule was added" in page


async def test_callers_without_lasting_rights_add_no_schedule(site: Site) -> None:
    refused = await site.wire.call(site.hub.url, "add_schedule", {"workflow": "nightly"})
    assert refused.error["data"]["type"] == "not_allowed"
    assert "retinue token new" in refused.error["data"]["remedy"]


async def test_the_schedule_of_a_revoked_token_says_so(site: Site) -> None:
    tokens = TokenFile(site.system.state.keys)
    issued, text = tokens.issue(MESH, name="ci")
    ask = {"workflow": "nightly"}
    added = await site.wire.call(site.hub.url, "add_schedule", ask, authorization=f"Bearer {text}")
    assert added.result["owner"] == "token:ci"
    tokens.revoke(issued.id)
    listed = await site.wire.call(site.hub.url, "list_schedules", {}, authorization=site.system.token)
    (row,) = listed.result["schedules"]
    assert (row["schedule"], row["status"]) == ("nightly~mesh", "broken")
    assert row["reason"] == "the token token:ci was revoked"


async def test_an_unknown_schedule_is_named(site: Site) -> None:
    ask = {"schedule": "nothing", "change": "pause"}
    refused = await site.wire.call(site.hub.url, "change_schedule", ask, authorization=site.system.token)
    assert refused.error["data"]["type"] == "unknown_schedule"


def test_the_rights_of_an_owner_end_with_its_token(tmp_path: Path) -> None:
    tokens, now = TokenFile(tmp_path), [0.0]
    owner = ScheduleOwner("token:ci", "token", MESH)

    def find() -> str:
        return find_end_of_rights(tmp_path, lambda: now[0], owner)

    assert find() == "the token token:ci was revoked"
    issued, _ = tokens.issue(MESH, name="ci", lifetime_s=60)
    now[0] = issued.created_at + 59
    assert find() == ""
    now[0] = issued.created_at + 61
    assert find() == "the token token:ci has expired"
    tokens.issue({"exposed"}, name="ci")
    assert find() == "the token token:ci was replaced by one with fewer rights"
    tokens.issue(MESH, name="ci")
    assert find() == ""
    assert find_end_of_rights(tmp_path, lambda: now[0], ScheduleOwner("local", "local", MESH)) == ""
