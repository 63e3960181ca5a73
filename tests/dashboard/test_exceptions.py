"""What a hub with pages takes out of the security checks, and an agent does not."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from retinue import Agent
from retinue.storage.state import State
from tests.system import open_system, open_wire

FORM = "application/x-www-form-urlencoded"
BLOB = "application/octet-stream"
UPLOADS = "/v2/agents/echo/blobs/uploads/"


async def test_a_browser_without_a_token_reaches_the_ways_to_sign_in(tmp_path: Path) -> None:
    async with open_system(State(tmp_path), auth={"anonymous": False}) as system, open_wire() as wire:
        hub = await system.start_hub(dashboard=True)
        assert (await wire.get(f"{hub.url}/ui/static/style.css")).status == 200
        assert (await wire.get(f"{hub.url}/ui/sign-in")).status == 200
        headers = {"content_type": FORM, "origin": hub.url}
        refused = await wire.post(f"{hub.url}/ui/sign-in", b"token=wrong", **headers)
        assert refused.status == 403
        assert b"this server does not know this token" in refused.body
        assert (await wire.get(f"{hub.url}/ui/agents")).status == 401
        async with (
            aiohttp.ClientSession() as browser,
            browser.post(
                f"{hub.url}/ui/sign-in",
                data={"token": system.state.local_token()},
                headers={"origin": hub.url},
                allow_redirects=False,
            ) as reply,
        ):
            assert reply.status == 303
            assert "retinue_session=" in reply.headers["set-cookie"]


async def test_media_types_are_checked_wherever_no_part_does(tmp_path: Path) -> None:
    async with open_system(State(tmp_path)) as system, open_wire() as wire:
        hub = await system.start_hub()
        agent = await system.start_agent(Agent("echo", version="1.0.0"))
        headers = {"content_type": BLOB, "authorization": system.token}
        assert (await wire.post(f"{hub.url}{UPLOADS}", b"", **headers)).status == 202
        for url in (f"{hub.url}/execute", f"{agent.url}/execute", f"{agent.url}{UPLOADS}"):
            assert (await wire.post(url, b"", **headers)).status == 415, url
