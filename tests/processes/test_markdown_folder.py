"""``retinue serve FOLDER``: the agents of a folder in one process, which follow their files."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from retinue import Agent
from retinue.core.errors import ReferenceNotFoundError
from retinue.markdown.agent import DIGEST_KEY
from retinue.oci.codec.reference import DEFAULT_TAG, Reference
from tests.processes.commands import retinue
from tests.processes.running import program, wait_until
from tests.support.thinking import ScriptedModel, say, use
from tests.system import WAIT_S, Hub, System, Wire

FILE = "---\nname: {name}\ndescription: Answers.\ntools: hold\n---\n{text}\n"
FILE_OF_ALPHA = Reference("prompts/alpha", tag=DEFAULT_TAG)


def write(folder: Path, file: str, name: str, text: str = "You answer.") -> None:
    (folder / file).write_text(FILE.format(name=name, text=text))


async def wait_for(served: Any, line: str) -> str:
    found: str = await asyncio.to_thread(served.wait_for, line)
    return found


async def read_digest(wire: Wire, hub: Hub, name: str) -> Any:
    await wire.call(hub.url, "refresh_agents")
    return (await hub.mesh.directory.open_named(name)).record.annotations[DIGEST_KEY]


async def list_names(wire: Wire, hub: Hub) -> set[str]:
    await wire.call(hub.url, "refresh_agents")
    rows = (await wire.call(hub.url, "list_agents", {})).result["agents"]
    return {row["name"] for row in rows} & {"alpha", "beta", "gamma", "delta"}


async def read_file(system: System) -> bytes | None:
    """The published file of the agent alpha; None while there is none."""
    with suppress(ReferenceNotFoundError):
        return (await system.home.pull(FILE_OF_ALPHA)).content
    return None


async def test_a_folder_is_one_process_that_follows_its_files(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    asked, answering = asyncio.Event(), asyncio.Event()
    holder = Agent("holder", version="1.0.0")

    @holder.skill
    async def hold() -> str:
        """Holds."""
        asked.set()
        await answering.wait()
        return "held"

    model = ScriptedModel(use(("holder__hold", {})), say("done"))
    hub = await system.start_hub()
    await system.start_agent(model.agent)
    await system.start_agent(holder)
    folder = tmp_path / "agents"
    folder.mkdir()
    write(folder, "a.md", "alpha")
    write(folder, "b.md", "beta")
    write(folder, "twice.md", "alpha")
    (folder / "README.md").write_text("# Agents\n")
    with program("serve", str(folder), cwd=tmp_path) as served:
        for line in (
            "published agents/alpha:v1",
            "published agents/beta:v1",
            "twice.md:2: name: the agent of a.md",
        ):
            await wait_for(served, line)
        assert await list_names(wire, hub) == {"alpha", "beta"}
        before = await read_digest(wire, hub, "alpha")
        async with asyncio.timeout(WAIT_S):
            while await read_file(system) != (folder / "a.md").read_bytes():
                await asyncio.sleep(0.05)

        call = asyncio.create_task(wire.call(hub.url, "alpha", {"prompt": "Go", "run": "r"}))
        async with asyncio.timeout(WAIT_S):
            await asked.wait()
        write(folder, "a.md", "alpha", "You answer briefly.")
        await wait_for(served, "a.md has changed")
        answering.set()
        assert (await call).result == "done"
        systems = [request.system.partition("\n")[0] for request in model.requests]
        assert systems == ["You answer.", "You answer."], "the run keeps the text that it started with"
        assert (await wire.call(hub.url, "alpha", {"prompt": "Go", "run": "r"})).result == "done"
        assert len(model.requests) == 2, "the same call picks the old run up"
        async with asyncio.timeout(WAIT_S):
            while await read_digest(wire, hub, "alpha") == before:
                await asyncio.sleep(0.05)
            while await read_file(system) != (folder / "a.md").read_bytes():
                await asyncio.sleep(0.05)
        await wire.call(hub.url, "alpha", {"prompt": "Again"})
        assert model.requests[2].system.startswith("You answer briefly.")

        write(folder, "a.md", "two words")
        await wait_for(served, "a.md:2: name: 'two words' is no name")
        write(folder, "c.md", "gamma")
        await wait_for(served, "published agents/gamma:v1")
        (folder / "b.md").unlink()
        await wait_for(served, "b.md is gone")
        write(folder, "c.md", "delta")
        await wait_for(served, "published agents/delta:v1")
        assert await list_names(wire, hub) == {"alpha", "delta"}


async def test_agents_of_a_folder_execute_their_runs_together_where_no_hub_runs(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    model = ScriptedModel(say("done"))
    await system.start_agent(model.agent)
    for file, name in (("a.md", "alpha"), ("b.md", "beta")):
        write(tmp_path, file, name)
    with program("serve", str(tmp_path), cwd=tmp_path) as served:
        lines = [await wait_for(served, f"{name} at") for name in ("alpha", "beta")]
        urls = [line.split()[-1] for line in lines]
        await wait_for(served, "published agents/beta:v1")
        replies = await asyncio.gather(
            wire.call(urls[0], "alpha", {"prompt": "Go"}), wire.call(urls[1], "beta", {"prompt": "Go"})
        )
        assert [reply.result for reply in replies] == ["done", "done"]


async def test_tools_and_a_model_that_the_mesh_does_not_have_are_told_with_their_lines(
    system: System, tmp_path: Path
) -> None:
    await system.start_hub()
    (tmp_path / "a.md").write_text("---\nname: alpha\ntools: nothing, no*\nmodel: sonnet\n---\nWork.\n")
    with program("serve", str(tmp_path / "a.md"), cwd=tmp_path) as served:
        for line in (
            "warning: a.md:3: tools: nothing: Unknown skill: nothing; ",
            "warning: a.md:3: tools: no*: no skill is named by no*; see the skills: retinue find",
            "warning: a.md:4: model: claude: agent claude takes no tools, or is unknown; name a model agent",
            "warning: a.md:3: tools: none of them is there, so the agent has no tools now",
        ):
            await wait_for(served, line)


def test_a_running_hub_serves_agents_that_are_imported_and_stops_after_the_last(tmp_path: Path) -> None:
    folder = tmp_path / ".claude" / "agents"
    folder.mkdir(parents=True)
    write(folder, "a.md", "alpha")
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("hub at")
        imported = retinue("import", "claude-agents", str(tmp_path), "--all", cwd=tmp_path)
        assert "imported: alpha" in imported
        hub.wait_for("agents at http://")
        assert "alpha" in retinue("agents", cwd=tmp_path)
        assert "an agent is called" not in retinue("import", "claude-agents", str(tmp_path), cwd=tmp_path)
        retinue("imports", "remove", "alpha", cwd=tmp_path)
        wait_until(lambda: "alpha" not in retinue("agents", cwd=tmp_path), "the agent to end")
