"""The hub's skills for writers of workflows: a draft is checked with the line of each fault, and stored."""

from __future__ import annotations

from typing import Any

from tests.system import System, Wire

FAULTY = """\
name: nightly
steps:
  - {id: first, skill: nobody_has_it, with: {a: "${{ steps.later.output }}"}}
  - {id: second, skill: plus, with: {a: "${{ 1 + }}"}}
  - {id: second, skill: plus}
"""
MISSPELT = "name: nightly\nstep:\n  - {id: a, skil: plus}\nsettings: {nothing: 1}\n"
GOOD = "name: nightly\nsteps:\n  - {id: ask, wait_for: approval}\n  - {id: last, skill: nobody_has_it}\n"
INNER = "name: outer\nsteps:\n  - {id: ask, wait_for: approval}\n  - {id: in, workflow: nowhere}\n"


async def check(wire: Wire, url: str, text: str, **headers: str) -> dict[str, Any]:
    found: dict[str, Any] = (await wire.call(url, "check_workflow", {"text": text}, **headers)).result
    return found


async def test_each_fault_of_a_draft_has_its_line(system: System, wire: Wire) -> None:
    hub = await system.start_hub()

    async def lines(text: str) -> list[int]:
        found = (await wire.call(hub.url, "check_workflow", {"text": text})).result
        assert found["valid"] is (not found["problems"])
        return [one["line"] for one in found["problems"]]

    assert await lines(FAULTY.replace("id: second, skill: plus}", "id: third, skill: plus}")) == [3, 4]
    assert await lines(FAULTY) == [5]
    assert await lines(MISSPELT) == [1, 2, 4]
    assert await lines("name: [\n") == [2]
    assert await lines(INNER) == [4]
    assert await lines("") == [0]


async def test_a_draft_without_faults_is_drawn_and_warns_of_skills_that_nobody_offers(
    system: System, wire: Wire
) -> None:
    hub = await system.start_hub()
    found = await check(wire, hub.url, GOOD)
    assert (found["valid"], found["name"]) == (True, "nightly")
    (warning,) = found["warnings"]
    assert (warning["line"], warning["column"], warning["blocks_run"]) == (4, 16, True)
    assert warning["message"] == "steps[1].skill: Unknown skill: nobody_has_it"


async def test_only_the_mesh_itself_stores_a_workflow(system: System, wire: Wire) -> None:
    hub = await system.start_hub()
    stranger = await wire.call(hub.url, "store_workflow", {"text": GOOD})
    assert stranger.error["data"]["type"] == "not_allowed"
    stored = await wire.call(hub.url, "store_workflow", {"text": GOOD}, authorization=system.token)
    assert stored.result == {"workflow": "nightly", "reference": "workflows/nightly:v1"}
    listed = (await wire.call(hub.url, "list_workflows", {"filter": "custom"})).result["workflows"]
    assert [one["name"] for one in listed] == ["nightly"]


async def test_a_workflow_does_not_take_the_name_of_a_built_in_one_or_of_a_file(
    system: System, wire: Wire
) -> None:
    (system.state.root / "workflows").mkdir(parents=True)
    (system.state.root / "workflows" / "nightly.yaml").write_text(GOOD)
    hub = await system.start_hub()
    for text in (GOOD, GOOD.replace("nightly", "plan-execute")):
        reply = await wire.call(hub.url, "store_workflow", {"text": text}, authorization=system.token)
        assert reply.error["data"]["type"] == "invalid_request"
