"""Sessions of browsers: links, cookies, and what a page of another server cannot do."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retinue.core.call import Principal
from retinue.dashboard.sessions import (
    LINKS_OF_A_CALLER,
    OPEN_PREFIXES,
    PAGE_PREFIXES,
    SESSION_S,
    SESSIONS_OF_A_CALLER,
    BrowserSessions,
    SessionMiddleware,
    is_own_page,
    read_cookie,
)
from retinue.storage.browser_sessions import SessionFile
from retinue.web.security import SecurityMiddleware, SecuritySettings, Tokens, identity_of
from tests.serving import serve_app

TOKEN = b"token-of-ada-0123456789"


@pytest.fixture
def sessions() -> BrowserSessions:
    return BrowserSessions()


@pytest.fixture
async def url(sessions: BrowserSessions) -> AsyncIterator[str]:
    async def who(request: Request) -> JSONResponse:
        return JSONResponse(identity_of(request.scope).principal.id)

    app = Starlette(routes=[Route("/{path:path}", who, methods=["GET", "POST"])])
    tokens = Tokens({TOKEN.decode(): Principal("ada", "token", frozenset({"mesh"}))})
    settings = SecuritySettings(anonymous=False, any_media_type=PAGE_PREFIXES, open_prefixes=OPEN_PREFIXES)
    checks = SecurityMiddleware(app, settings, tokens)
    SessionMiddleware.put_before(checks, sessions)
    async with serve_app(checks) as url:
        yield url


async def get(url: str, **options: Any) -> tuple[int, Any, str]:
    async with aiohttp.ClientSession() as client, client.get(url, allow_redirects=False, **options) as reply:
        text = await reply.text()
        return reply.status, text, reply.headers.get("location", "")


async def test_a_cookie_stands_for_its_token_on_pages_only(url: str, sessions: BrowserSessions) -> None:
    headers = {"cookie": f"retinue_session={sessions.begin(TOKEN, 'ada')}"}
    assert (await get(f"{url}/", headers=headers))[:2] == (200, '"ada"')
    assert (await get(f"{url}/ui/agents", headers=headers))[:2] == (200, '"ada"')
    for path in ("/execute", "/mcp", "/v2/", "/agents/a/execute"):
        assert (await get(f"{url}{path}", headers=headers))[0] == 401


async def test_a_page_without_a_session_leads_to_sign_in_and_back(url: str) -> None:
    html = {"accept": "text/html"}
    status, _, location = await get(f"{url}/ui/calls?skill=a%20b", headers=html)
    assert (status, location) == (303, "/ui/sign-in?to=%2Fui%2Fcalls%3Fskill%3Da%2520b")
    assert (await get(f"{url}/ui/calls"))[0] == 401
    unknown = {**html, "cookie": "retinue_session=made-up"}
    assert (await get(f"{url}/ui/sign-in", headers=unknown))[0] == 200


async def test_a_session_whose_token_is_revoked_leads_to_sign_in(url: str, sessions: BrowserSessions) -> None:
    headers = {"accept": "text/html", "cookie": f"retinue_session={sessions.begin(b'revoked', 'ada')}"}
    assert (await get(f"{url}/ui/calls", headers=headers))[0] == 303
    assert (await get(f"{url}/ui/sign-in", headers=headers))[0] == 200


def test_a_link_signs_in_once_and_an_ended_session_is_gone(sessions: BrowserSessions) -> None:
    code = sessions.make_link(TOKEN, "ada").rpartition("/")[2]
    session = sessions.use_link(code)
    assert session is not None
    assert sessions.find(session) == TOKEN
    assert sessions.use_link(code) is None
    sessions.end(session)
    assert sessions.find(session) is None


def test_a_caller_that_makes_many_links_or_sessions_ends_only_its_own(sessions: BrowserSessions) -> None:
    owner, link = sessions.begin(b"owner", "local"), sessions.make_link(b"owner", "local")
    own_links = [sessions.make_link(TOKEN, "ada") for _ in range(3 * LINKS_OF_A_CALLER)]
    own_sessions = [sessions.begin(TOKEN, "ada") for _ in range(3 * SESSIONS_OF_A_CALLER)]
    assert sessions.find(owner) == b"owner"
    assert sessions.find_link(link.rpartition("/")[2]) is not None
    kept = [link for link in own_links if sessions.find_link(link.rpartition("/")[2]) is not None]
    assert kept == own_links[-LINKS_OF_A_CALLER:]
    assert [one for one in own_sessions if sessions.find(one)] == own_sessions[-SESSIONS_OF_A_CALLER:]


KEY = b"k" * 32


def test_sessions_survive_a_restart_with_the_mesh_key_only(tmp_path: Path) -> None:
    file = SessionFile(tmp_path / "sessions.json")
    before = BrowserSessions(KEY, file)
    kept, ended = before.begin(TOKEN, "ada"), before.begin(b"token-of-bob", "bob")
    before.end(ended)
    after = BrowserSessions(KEY, file)
    assert after.find(kept) == TOKEN
    assert after.find(ended) is None
    assert BrowserSessions(b"x" * 32, file).find(kept) is None
    assert (tmp_path / "sessions.json").stat().st_mode & 0o777 == 0o600
    text = (tmp_path / "sessions.json").read_bytes()
    for secret in (TOKEN, kept.encode(), b64encode(TOKEN)):
        assert secret not in text
    made_up = BrowserSessions(KEY, file)
    assert made_up.find(kept + "x") is None


def test_the_bound_of_a_caller_and_the_twelve_hours_hold_across_restarts(tmp_path: Path) -> None:
    file, times = SessionFile(tmp_path / "sessions.json"), [1_000_000.0]
    first = BrowserSessions(KEY, file, clock=lambda: times[0])
    owner = first.begin(b"owner", "local")
    sessions = [first.begin(TOKEN, "ada") for _ in range(SESSIONS_OF_A_CALLER)]
    second = BrowserSessions(KEY, file, clock=lambda: times[0])
    sessions.append(second.begin(TOKEN, "ada"))
    assert [one for one in sessions if second.find(one)] == sessions[1:]
    times[0] += SESSION_S - 1
    assert second.find(owner) == b"owner"
    times[0] += 2
    assert second.find(owner) is None
    assert BrowserSessions(KEY, file, clock=lambda: times[0]).find(owner) is None


@pytest.mark.parametrize(
    "content", [b"", b"no json", b"[1, {}]", b'{"a": 1}', b'[{"digest": "d", "caller": "c"}]']
)
def test_a_damaged_file_of_sessions_ends_them_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sessions.json").write_bytes(content)
    sessions = BrowserSessions(KEY, SessionFile(tmp_path / "sessions.json"))
    assert sessions.find(sessions.begin(TOKEN, "ada")) == TOKEN


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({b"sec-fetch-site": b"same-origin"}, True),
        ({b"sec-fetch-site": b"same-site", b"origin": b"http://localhost:1"}, False),
        ({b"sec-fetch-site": b"cross-site"}, False),
        ({b"sec-fetch-site": b"none"}, False),
        ({b"origin": b"http://localhost:9000"}, True),
        ({b"origin": b"null"}, False),
        ({}, False),
    ],
)
def test_only_a_browser_on_a_page_of_this_server_may_act(headers: dict[bytes, bytes], is_own: bool) -> None:
    assert is_own_page(headers) is is_own


@pytest.mark.parametrize("cookie", [b"", b"\xff", b"a=b; retinue_session", b"x" * 5000, b'retinue_session="'])
def test_cookies_of_other_forms_are_no_session(cookie: bytes) -> None:
    assert not read_cookie({b"cookie": cookie})
