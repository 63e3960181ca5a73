"""With which rights a workflow acts: those of whoever starts it, or the mesh's where its owner said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.core.errors import DefinitionError
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_workflow
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from retinue.workflows.definitions.loading import list_builtins, load, load_builtin
from tests.mcp.clients import sessionless
from tests.requirements import requirement
from tests.system import NOON, Hub, Reply, System, Wire, open_system

STORED: dict[str, Any] = {
    "name": "stored",
    "steps": [{"id": "a", "skill": "inner_do", "with": {"prompt": "x"}}],
}
MARKED = {**STORED, "name": "marked", "runs_as": "mesh"}
INPUT = {"prompt": "x", "agent": "role-agent", "module": "textwrap", "requirements": "x"}


class Office:
    """A hub, and the agent ``role-agent``, which exposes none of its skills but one."""

    def __init__(self, system: System, wire: Wire, ran: list[str]) -> None:
        self.system, self.wire, self.ran = system, wire, ran
        self.hub: Hub

    def token(self, *scopes: str) -> dict[str, str]:
        _, text = TokenFile(self.system.state.keys).issue(scopes)
        return {"authorization": f"Bearer {text}"}

    async def store(self, workflow: Any) -> None:
        await publish_workflow(self.system.home, workflow["name"], orjson.dumps(workflow), created=NOON)

    async def run(self, workflow: Any, token: dict[str, str], **more: Any) -> Reply:
        arguments = {"workflow": workflow, "input": INPUT, **more}
        return await self.wire.call(self.hub.url, "orchestrate_workflow", arguments, **token)


def make_agent(ran: list[str]) -> Agent:
    agent = Agent("role-agent", version="1.0.0")

    @agent.skill(roles=["execute", "plan", "review"])
    async def inner_do(prompt: str) -> str:
        """Does what agents of the mesh may ask for."""
        ran.append("inner_do")
        return f"MESH-ONLY DID: {prompt}"

    @agent.skill
    async def inner_undo() -> str:
        """Takes it back."""
        ran.append("inner_undo")
        return "undone"

    @agent.skill(runs_code=True)
    async def inner_code() -> str:
        """Runs code."""
        ran.append("inner_code")
        return "ran"

    @agent.skill(expose=True)
    async def outer_do() -> str:
        """Does what clients may ask for."""
        ran.append("outer_do")
        return "done"

    @agent.skill(expose=True)
    async def outer_fail() -> str:
        """Fails."""
        raise ValueError("no")

    return agent


async def start(system: System, wire: Wire) -> Office:
    office = Office(system, wire, [])
    await system.start_agent(make_agent(office.ran))
    office.hub = await system.start_hub()
    return office


@pytest.fixture
async def office(system: System, wire: Wire) -> Office:
    return await start(system, wire)


async def by_execute(office: Office, workflow: str, token: dict[str, str]) -> Reply:
    return await office.run(workflow, token)


async def by_call_skill(office: Office, workflow: str, token: dict[str, str]) -> Reply:
    given = {"skill": "orchestrate_workflow", "arguments": {"workflow": workflow, "input": INPUT}}
    return await office.wire.call(office.hub.url, "call_skill", given, **token)


async def by_mcp(office: Office, workflow: str, token: dict[str, str]) -> Reply:
    given = {"name": "orchestrate_workflow", "arguments": {"workflow": workflow, "input": INPUT}}
    message, headers = sessionless("tools/call", given)
    return await office.wire.post(f"{office.hub.url}/mcp", message, **headers, **token)


@requirement("S-17")
@pytest.mark.parametrize("way", [by_execute, by_call_skill, by_mcp], ids=["execute", "call_skill", "mcp"])
@pytest.mark.parametrize(
    "workflow", ["direct", "competitive", "iterative", "plan-execute", "code-review", "auto"]
)
async def test_a_built_in_workflow_opens_no_skill_that_its_caller_cannot_call(
    office: Office, workflow: str, way: Any
) -> None:
    reply = await way(office, workflow, office.token("exposed"))
    assert b"MESH-ONLY" not in reply.body
    assert office.ran == []


@pytest.mark.parametrize("scopes", [("mesh",), ("exposed", "mesh"), ("mesh", "runs_code")])
async def test_a_built_in_workflow_does_for_its_caller_what_he_may_do(
    office: Office, scopes: tuple[str, ...]
) -> None:
    reply = await office.run("direct", office.token(*scopes))
    assert reply.result["output"] == {"output": "MESH-ONLY DID: x", "agent": "role-agent"}


def test_no_built_in_workflow_runs_as_the_mesh() -> None:
    assert {load_builtin(name).definition.runs_as for name in list_builtins()} == {"caller"}


@pytest.mark.parametrize("scopes", [("exposed",), ("exposed", "runs_code")])
@pytest.mark.parametrize("place", ["registry", "folder"])
async def test_a_stored_workflow_acts_with_the_rights_of_its_caller(
    office: Office, place: str, scopes: tuple[str, ...]
) -> None:
    if place == "registry":
        await office.store(STORED)
    else:
        put(office.system.state.root / "workflows", STORED)
    refused = await office.run("stored", office.token(*scopes))
    assert "inner_do" in refused.error["message"]
    assert office.ran == []
    assert (await office.run("stored", office.token("mesh"))).result["output"] == "MESH-ONLY DID: x"


def put(folder: Path, workflow: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{workflow['name']}.yaml").write_bytes(orjson.dumps(workflow))


@pytest.mark.parametrize("place", ["registry", "folder"])
async def test_a_workflow_that_its_owner_marked_acts_as_the_mesh_but_runs_no_code(
    office: Office, place: str
) -> None:
    coding = {"name": "coding", "runs_as": "mesh", "steps": [{"id": "a", "skill": "inner_code", "with": {}}]}
    for workflow in (MARKED, coding):
        if place == "registry":
            await office.store(workflow)
        else:
            put(office.system.state.root / "workflows", workflow)
    exposed = office.token("exposed")
    assert (await office.run("marked", exposed)).result["output"] == "MESH-ONLY DID: x"
    refused = await office.run("coding", exposed)
    assert refused.error["data"]["cause"]["type"] == "not_authenticated"
    assert office.ran == ["inner_do"]
    listed = await office.wire.call(office.hub.url, "list_workflows", {"filter": "custom"}, **exposed)
    assert [row["runs_as"] for row in listed.result["workflows"]] == ["mesh", "mesh"]


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
@pytest.mark.parametrize("place", ["inline", "foreign registry"])
async def test_only_who_may_store_workflows_here_marks_one(
    retinue_home: Path, tmp_path: Path, wire: Wire, place: str, nested: bool
) -> None:
    """In a call, and in a registry of others, the mark is refused, whoever starts the workflow."""
    foreign = LayoutRegistry(tmp_path / "foreign")
    await publish_workflow(foreign, "marked", orjson.dumps(MARKED), created=NOON)
    async with open_system(State(retinue_home), registries=[str(tmp_path / "foreign")]) as system:
        office = await start(system, wire)
        workflow: Any = MARKED if place == "inline" else "marked"
        if nested:
            workflow = {"name": "around", "steps": [{"id": "n", "workflow": "marked", "with": INPUT}]}
            if place == "inline":
                workflow = {**workflow, "runs_as": "mesh"}
        for token in (office.token("exposed"), {"authorization": system.token}):
            reply = await office.run(workflow, token)
            assert "runs_as: only a workflow that is stored in this state may run as the mesh" in str(
                reply.error
            )
            assert "retinue publish" in str(reply.error)
        assert office.ran == []


async def test_nested_workflows_have_the_rights_of_the_one_around_unless_their_owner_marked_them(
    office: Office,
) -> None:
    """The mark of the inner one counts for its steps and their compensation, not for those around."""
    inner = {
        "name": "inner",
        "runs_as": "mesh",
        "steps": [
            {
                "id": "a",
                "skill": "inner_do",
                "with": {"prompt": "x"},
                "compensate": {"skill": "inner_undo", "with": {}},
            }
        ],
    }
    await office.store(inner)
    await office.store(STORED)
    exposed = office.token("exposed")
    call_inner = {"id": "n", "workflow": "inner", "with": {}}
    call_stored = {"id": "n", "workflow": "stored", "with": {}}

    reply = await office.run({"name": "w", "steps": [call_inner]}, exposed)
    assert reply.result["output"] == "MESH-ONLY DID: x"
    # under a condition: a step that surely runs is refused before the run
    beside = {"id": "b", "skill": "inner_do", "with": {"prompt": "y"}, "when": "true"}
    reply = await office.run({"name": "w", "steps": [call_inner, beside]}, exposed)
    assert "inner_do" in reply.error["message"]
    assert office.ran == ["inner_do", "inner_do", "inner_undo"]

    reply = await office.run({"name": "w", "steps": [call_stored]}, exposed)
    assert "inner_do" in reply.error["message"]
    await office.store({"name": "around", "runs_as": "mesh", "steps": [call_stored]})
    assert (await office.run("around", exposed)).result["output"] == "MESH-ONLY DID: x"


async def test_a_marked_workflow_calls_the_agents_of_its_owner_only(office: Office) -> None:
    """Whoever has not the scope mesh cannot turn it to others."""
    await office.store({"name": "m", "runs_as": "mesh", "steps": [{"id": "a", "prompt": "x"}]})
    overrides = {"agents": {"a": "role-agent"}}
    refused = await office.run("m", office.token("exposed"), overrides=overrides)
    assert refused.error["data"]["type"] == "not_allowed"
    assert office.ran == []
    allowed = await office.run("m", office.token("mesh"), overrides=overrides)
    assert allowed.result["output"] == "MESH-ONLY DID: x"


async def test_a_rerun_keeps_the_rights_of_the_run(office: Office) -> None:
    """Whoever has more rights repeats it with the rights of whoever began it."""
    local = {"authorization": office.system.token}
    hidden = {**STORED, "steps": [{**step, "when": "true"} for step in STORED["steps"]]}
    await office.run(hidden, office.token("exposed"), run="first")
    again = {"run": "first", "from_step": "a", "new_run": "second"}
    reply = await office.wire.call(office.hub.url, "rerun_run", again, **local)
    run = reply.result["run"]
    done = False
    while not done:
        reply = await office.wire.call(office.hub.url, "follow_run", {"run": run}, **local)
        done = reply.result["done"]
    assert reply.result["status"] == "failed"
    assert office.ran == []


def test_a_mark_is_caller_or_mesh() -> None:
    with pytest.raises(DefinitionError, match="runs_as"):
        load({**STORED, "runs_as": "root"})
