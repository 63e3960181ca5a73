"""Artifacts of runs on the dashboard: foreign files, shown by their first bytes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue import Agent, Context
from retinue.storage.state import State
from tests.dashboard.site import Site
from tests.system import open_system, open_wire

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
HOSTILE = "\"><script>alert('x')</script>\u202e\r\nset-cookie: a=b.png"
FLOW = {
    "name": "files",
    "steps": [{"id": "draw", "skill": "draw", "with": {}}, {"id": "page", "skill": "page", "with": {}}],
}


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        agent = Agent("file-agent")

        @agent.skill
        async def draw(ctx: Context) -> Any:
            """Saves an image under a hostile name and a wrong type."""
            return await ctx.save(PNG, "text/html", name=HOSTILE)

        @agent.skill
        async def page(ctx: Context) -> Any:
            """Saves a drawing that a browser would run."""
            return {"files": [await ctx.save(SVG, "image/svg+xml", name="drawing.svg")]}

        await system.start_agent(agent)
        yield Site(system, await system.start_hub(dashboard=True), wire, [])


async def start_run(given: Any = None) -> str:
    async with retinue.connect() as mesh:
        run = await mesh.start(FLOW, given)
        await run.result()
        return run.id


async def test_an_artifact_of_a_run_is_shown_by_its_bytes_and_never_as_a_page(site: Site) -> None:
    run = await start_run()
    page = (await site.read(f"/ui/runs/{run}", site.system.token)).body.decode()
    files = page.partition('id="artifacts"')[2].partition("</section>")[0]
    (shown,) = re.findall(r'<img src="(/ui/artifacts/[^"]+)"', files)
    assert "<script>alert" not in page
    assert "drawing.svg" in files
    image = await site.read(shown, site.system.token)
    assert (image.status, image.headers["content-type"], image.body) == (200, "image/png", PNG)
    assert image.headers["content-disposition"].startswith("inline")
    assert "set-cookie" not in image.headers
    (drawing,) = set(re.findall(r'href="(/ui/artifacts/[^"?]+)\?download=1"', files)) - {shown}
    for path in (drawing, f"{drawing}?download=1", f"{shown}?download=1"):
        reply = await site.read(path, site.system.token)
        assert reply.headers["content-type"] == "application/octet-stream"
        assert reply.headers["content-disposition"].startswith("attachment;")
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert reply.body in (SVG, PNG)


async def test_the_page_of_a_step_has_its_own_files(site: Site) -> None:
    run = await start_run()
    page = (await site.read(f"/ui/runs/{run}?step=page", site.system.token)).body.decode()
    assert page.count('class="file"') == 1
    assert "drawing.svg" in page


async def test_a_deleted_artifact_is_named_and_has_no_link(site: Site) -> None:
    run = await start_run()
    async with retinue.connect() as mesh:
        (row,) = [row for row in await mesh.runs() if row["run"] == run]
        assert row["status"] == "done"
        shown = await mesh.run(run).show()
    digest = shown["steps"][1]["output"]["files"][0]["artifact"]
    deleted = await site.wire.post(f"{site.hub.url}/artifacts/collect", b"", authorization=site.system.token)
    assert deleted.status == 200
    reply = await site.wire.get(f"{site.hub.url}/artifacts/{digest}", authorization=site.system.token)
    assert reply.status == 200
    from retinue.storage.artifacts.state_artifacts import StateArtifacts

    await site.hub.process.get(StateArtifacts).store.delete(digest)
    page = (await site.read(f"/ui/runs/{run}?step=page", site.system.token)).body.decode()
    assert "Unknown artifact" in page
    assert f"/ui/artifacts/{digest}" not in page


@pytest.mark.parametrize("digest", ["nonsense", f"sha256:{'0' * 64}", "sha256:..%2f..%2fx"])
async def test_an_unknown_artifact_has_no_page(site: Site, digest: str) -> None:
    assert (await site.read(f"/ui/artifacts/{digest}", site.system.token)).status in (400, 404)
