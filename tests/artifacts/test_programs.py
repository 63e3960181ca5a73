"""Files between programs, skills and other agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import retinue
from retinue import Agent, Artifact, Context
from retinue.core.artifact_links import FORMAT, LINK_SCHEMA
from retinue.core.errors import (
    ExecutionFailedError,
    InvalidParametersError,
    InvalidRequestError,
    NotAuthenticatedError,
    OutputInvalidError,
    QuotaExceededError,
    UnknownArtifactError,
)
from retinue.storage.artifacts.blobs import PIECE_BYTES
from retinue.storage.state import State
from retinue.testing import MemoryArtifacts, connect_agents
from tests.mcp.clients import MODES, connect, texts
from tests.serving import serve_app
from tests.system import System, open_system

LARGE = bytes(range(256)) * 8 * 1024 * 2  # four pieces
UNKNOWN = f"sha256:{'0' * 64}"


class Report(BaseModel):
    title: str
    file: Artifact
    others: list[Artifact] = []


def file_agent() -> Agent:
    agent = Agent("file-agent")

    @agent.skill
    async def write_report(title: str, ctx: Context) -> Report:
        """Writes a report."""
        file = await ctx.save(f"# {title}".encode(), "text/markdown", name="report.md")
        return Report(title=title, file=file)

    @agent.skill
    async def measure(file: Artifact) -> dict[str, Any]:
        """Measures a file."""
        content = await file.read()
        return {"bytes": len(content), "type": file.media_type, "name": file.name}

    @agent.skill
    async def head(files: list[Artifact], count: int = 3) -> list[str]:
        """Returns the first characters of some files."""
        return [(await file.read(0, count)).decode() for file in files]

    @agent.skill
    def count_lines(file: Artifact) -> int:
        """Counts the lines of a file, in a thread."""
        with file.sync().open() as lines:
            return sum(1 for _ in lines)

    @agent.skill
    async def pass_on(file: Artifact, ctx: Context) -> Any:
        """Lets another skill measure a file."""
        return await ctx.call("measure", {"file": file})

    @agent.skill
    async def copy(file: Artifact, ctx: Context) -> Artifact:
        """Copies a file in pieces."""

        async def pieces() -> AsyncIterator[bytes]:
            async with file.open() as opened:
                async for piece in opened:
                    yield piece

        return await ctx.save(pieces(), file.media_type, name=f"copy of {file.name}")

    return agent


def test_a_file_is_a_parameter_of_a_recognisable_schema() -> None:
    skills = {skill.id: skill for skill in file_agent().record().skills}
    measure = skills["measure"].input_schema
    assert measure is not None
    assert measure["properties"]["file"]["format"] == FORMAT
    report = skills["write_report"].output_schema
    assert report is not None
    assert report["properties"]["file"]["anyOf"] == LINK_SCHEMA["anyOf"]


async def test_a_skill_returns_a_file_that_a_program_reads(system: System, tmp_path: Path) -> None:
    await system.start_agent(file_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        value = await mesh.call("write_report", title="Weather")
        assert value["file"]["size"] == 9
        assert (value["file"]["media_type"], value["file"]["name"]) == ("text/markdown", "report.md")
        artifact = mesh.artifact(value["file"])
        assert await artifact.read() == b"# Weather"
        assert (await artifact.save(tmp_path)).name == "report.md"
        report = await mesh.call("write_report", title="Weather", into=Report)
        assert await report.file.read(2, 5) == b"Wea"


async def test_a_program_saves_a_file_that_a_skill_reads(system: System, tmp_path: Path) -> None:
    await system.start_agent(file_agent())
    await system.start_hub()
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,b\n" * 1000)
    async with retinue.connect() as mesh:
        artifact = await mesh.save(path)
        expected = {"bytes": 4000, "type": "text/csv", "name": "data.csv"}
        assert await mesh.call("measure", file=artifact) == expected
        assert await mesh.call("measure", file=artifact.to_json()) == expected
        assert (await mesh.call("measure", file=artifact.link))["bytes"] == 4000
        assert await mesh.call("count_lines", file=artifact) == 1000
        assert await mesh.call("pass_on", file=artifact) == expected
        assert await mesh.call("head", files=[artifact, artifact.link], count=2) == ["a,", "a,"]


async def test_content_larger_than_a_piece_is_sent_and_read_in_pieces(system: System, tmp_path: Path) -> None:
    await system.start_agent(file_agent())
    await system.start_hub()
    assert len(LARGE) > 3 * PIECE_BYTES
    path = tmp_path / "large"
    path.write_bytes(LARGE)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(LARGE), 300_000):
            yield LARGE[at : at + 300_000]

    async with retinue.connect() as mesh:
        for content in (LARGE, path, pieces()):
            artifact = await mesh.save(content, "application/x-large", name="large")
            assert (artifact.size, artifact.media_type) == (len(LARGE), "application/x-large")
        assert await artifact.read() == LARGE
        copied = mesh.artifact(await mesh.call("copy", file=artifact))
        assert (copied.digest, copied.name) == (artifact.digest, "copy of large")
        assert await artifact.read(len(LARGE) - 2) == LARGE[-2:]


async def test_an_argument_that_is_no_link_is_refused_before_the_skill_runs(system: System) -> None:
    await system.start_agent(file_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        for wrong in (7, "report.md", {"artifact": "sha256:1"}, {"file": UNKNOWN}, None):
            with pytest.raises(InvalidParametersError, match="file"):
                await mesh.call("measure", {"file": wrong})


async def test_a_deleted_file_is_an_error_of_the_skill_with_a_remedy(system: System) -> None:
    await system.start_agent(file_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        with pytest.raises(UnknownArtifactError) as caught:
            await mesh.call("measure", file=f"artifact:{UNKNOWN}")
        assert "it was deleted, or another hub has it" in caught.value.remedy
        with pytest.raises(UnknownArtifactError):
            await mesh.artifact(UNKNOWN).read()
        with pytest.raises(InvalidRequestError, match="no link to an artifact"):
            mesh.artifact({"value": 1})


async def test_a_program_without_a_loop_saves_and_reads_files(system: System, tmp_path: Path) -> None:
    await system.start_agent(file_agent())
    await system.start_hub()

    def program() -> None:
        with retinue.connect_sync() as mesh:
            artifact = mesh.save(b"one\ntwo\n", "text/plain", name="lines.txt")
            assert mesh.call("count_lines", file=artifact) == 2
            assert artifact.read(0, 3) == b"one"
            with artifact.open() as file:
                assert file.readline() == b"one\n"
                assert file.seek(-2, 2) == 6
                assert file.read() == b"o\n"
            assert artifact.save(tmp_path).read_bytes() == b"one\ntwo\n"
            assert mesh.artifact(artifact.link).open().read() == b"one\ntwo\n"

    await asyncio.to_thread(program)


async def test_the_quota_of_a_hub_is_the_same_error_everywhere(tmp_path: Path, retinue_home: Path) -> None:
    limits = {"caller_bytes": 1024 * 1024, "quota_bytes": 2 * 1024 * 1024}
    async with open_system(State(retinue_home), artifacts=limits) as system:
        await system.start_agent(file_agent())
        await system.start_hub()
        async with retinue.connect() as mesh:
            with pytest.raises(QuotaExceededError, match="over the quota of 1,048,576 bytes"):
                await mesh.save(LARGE)
            artifact = await mesh.save(LARGE[:100])
            assert await artifact.read() == LARGE[:100]


async def test_a_program_without_a_token_may_not_save(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await system.start_hub()
    monkeypatch.setenv("RETINUE_HOME", str(system.state.root / "nowhere"))
    async with retinue.connect(url=hub.url) as mesh:
        with pytest.raises(NotAuthenticatedError, match="saving an artifact needs a token"):
            await mesh.save(b"x")


async def test_a_download_goes_on_where_it_was_cut_off() -> None:
    artifact = await MemoryArtifacts().save(LARGE)
    asked: list[str | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        asked.append(headers.get("range"))
        start = int(headers.get("range", "bytes=0-")[6:-1])
        size = str(len(LARGE) - start).encode()
        status = 206 if start else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", size)]})
        if len(asked) < 3:
            await send(
                {"type": "http.response.body", "body": LARGE[start : start + 70_000], "more_body": True}
            )
            raise ConnectionResetError
        await send({"type": "http.response.body", "body": LARGE[start:]})

    async with serve_app(app) as url, retinue.connect(url=url, token="t") as mesh:
        assert await mesh.artifact(artifact.link).read() == LARGE
    assert len(asked) == 3
    assert asked[0] is None


async def test_a_hub_of_a_release_without_artifacts_says_so() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"Not Found"})

    async with serve_app(app) as url, retinue.connect(url=url, token="t") as mesh:
        with pytest.raises(UnknownArtifactError) as caught:
            await mesh.artifact(UNKNOWN).read()
        assert "a release without artifacts" in caught.value.remedy


async def test_agents_in_memory_pass_files_too() -> None:
    async with connect_agents(file_agent()) as mesh:
        artifact = await mesh.save(b"a\nb\n", name="x.txt")
        assert await mesh.call("count_lines", file=artifact) == 2
        value = await mesh.call("write_report", title="T")
        assert await mesh.artifact(value["file"]).read() == b"# T"


async def test_a_skill_is_tested_with_a_store_in_memory() -> None:
    artifacts = MemoryArtifacts()
    file = await artifacts.save(b"12345", name="n.txt")
    agent = file_agent()
    assert (await agent.call("measure", {"file": file}, artifacts=artifacts))["bytes"] == 5
    with pytest.raises(ExecutionFailedError, match="has no store"):
        await agent.call("write_report", {"title": "T"})


async def test_a_synchronous_skill_has_to_ask_for_the_methods_that_wait() -> None:
    artifacts = MemoryArtifacts()
    file = await artifacts.save(b"12345")
    with pytest.raises(InvalidRequestError, match="for the arguments of a skill"):
        file.sync()


async def test_a_result_that_is_declared_as_a_file_must_be_one() -> None:
    agent = Agent("wrong-agent")

    @agent.skill
    def give() -> Artifact:
        """Gives something else."""
        return "report.md"  # type: ignore[return-value]

    with pytest.raises(OutputInvalidError):
        await agent.call("give")


async def test_a_link_never_makes_a_request_to_its_host(system: System) -> None:
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"evil"})

    await system.start_agent(file_agent())
    await system.start_hub()
    async with serve_app(app) as url, retinue.connect() as mesh:
        artifact = await mesh.save(b"good")
        link = f"{url}/artifacts/{artifact.digest}"
        assert (await mesh.call("measure", file=link))["bytes"] == 4
        assert await mesh.artifact(link).read() == b"good"
    assert asked == []


@pytest.mark.parametrize("mode", MODES)
async def test_an_mcp_client_passes_a_file_as_text(system: System, mode: str) -> None:
    agent = Agent("size-agent")

    @agent.skill(expose=True)
    async def count_bytes(file: Artifact) -> int:
        """Counts the bytes of a file."""
        return len(await file.read())

    await system.start_agent(agent)
    hub = await system.start_hub()
    async with retinue.connect() as mesh:
        artifact = await mesh.save(b"12345")
    async with connect(f"{hub.url}/mcp", mode) as client:
        [tool] = [tool for tool in (await client.list_tools()).tools if tool.name.startswith("size-agent")]
        assert FORMAT in str(tool.input_schema)
        for file in (artifact.link, artifact.digest, artifact.to_json()):
            assert texts(await client.call_tool(tool.name, {"file": file})) == ["5"]
