"""One-time links of a hub with pages: who gets one, and what it does in a browser that follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.system import Hub, System, open_system, open_wire

HTML = {"accept": "text/html"}


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with open_system(State(tmp_path)) as system:
        yield system


@pytest.fixture
async def hub(system: System) -> Hub:
    return await system.start_hub(dashboard=True)


async def _make_link(hub: Hub, authorization: str) -> str:
    async with open_wire() as wire:
        reply = await wire.post(f"{hub.url}/ui/links", b"{}", authorization=authorization)
    assert reply.status == 200
    return hub.url + str(reply.json["path"])


async def _ask(method: str, url: str, **headers: str) -> tuple[int, str, Mapping[str, str]]:
    """Status, text and headers of the answer that a browser gets."""
    async with (
        aiohttp.ClientSession() as browser,
        browser.request(method, url, headers={**HTML, **headers}, allow_redirects=False) as reply,
    ):
        return reply.status, await reply.text(), reply.headers


def _issue(system: System, name: str) -> str:
    return TokenFile(system.state.keys).issue(("mesh",), name=name)[1]


@pytest.mark.parametrize("authorization", ["Basic x", "Basic eDp5", "bearer", "Digest a=b", "Bearer ", ""])
async def test_nobody_gets_a_link_without_a_token(hub: Hub, authorization: str) -> None:
    headers = {"authorization": authorization} if authorization else {}
    async with open_wire() as wire:
        assert (await wire.post(f"{hub.url}/ui/links", b"{}", **headers)).status == 401


async def test_a_link_of_the_owner_survives_a_flood_of_requests_for_links(system: System, hub: Hub) -> None:
    link = await _make_link(hub, system.token)
    token = f"Bearer {_issue(system, 'ada')}"
    async with open_wire() as wire:
        for authorization in ("Basic x", token):
            for _ in range(120):
                await wire.post(f"{hub.url}/ui/links", b"{}", authorization=authorization)
    assert "<button>Sign in" in (await _ask("GET", link))[1]


async def test_a_link_signs_in_by_its_button_and_not_by_being_followed(system: System, hub: Hub) -> None:
    link = await _make_link(hub, system.token)
    for _ in range(2):
        status, text, headers = await _ask("GET", link)
        assert status == 200
        assert "set-cookie" not in headers
        assert "as <strong>local</strong>" in text
    assert (await _ask("POST", link, **{"sec-fetch-site": "cross-site"}))[0] == 403
    status, _, headers = await _ask("POST", link, origin=hub.url)
    assert status == 303
    assert "retinue_session=" in headers["set-cookie"]
    assert "used already" in (await _ask("GET", link))[1]


async def test_a_browser_that_is_signed_in_stays_who_it_is(system: System, hub: Hub) -> None:
    _, _, signed_in = await _ask("POST", await _make_link(hub, system.token), origin=hub.url)
    cookie = signed_in["set-cookie"].partition(";")[0]
    foreign = await _make_link(hub, f"Bearer {_issue(system, 'eve')}")
    for method in ("GET", "POST"):
        status, text, headers = await _ask(method, foreign, origin=hub.url, cookie=cookie)
        assert status == 409
        assert "signed in as local, and the link is for token:eve" in text
        assert "set-cookie" not in headers
    again = await _make_link(hub, system.token)
    status, _, headers = await _ask("GET", again, cookie=cookie)
    assert (status, headers["location"]) == (303, "/")


async def test_a_session_whose_token_is_revoked_does_not_keep_a_link_from_signing_in(
    system: System, hub: Hub
) -> None:
    keys = TokenFile(system.state.keys)
    issued, text = keys.issue(("mesh",), name="ada")
    _, _, signed_in = await _ask("POST", await _make_link(hub, f"Bearer {text}"), origin=hub.url)
    keys.revoke(issued.id)
    cookie = signed_in["set-cookie"].partition(";")[0]
    link = await _make_link(hub, system.token)
    deadline = asyncio.get_running_loop().time() + 30
    while (answer := await _ask("POST", link, origin=hub.url, cookie=cookie))[0] == 409:
        # a process reads the tokens anew after half a second
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    assert answer[0] == 303
    assert "set-cookie" in answer[2]
