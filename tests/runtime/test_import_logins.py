"""Logins at imported servers, against an authorization server on this machine."""

from __future__ import annotations

import asyncio
import resource
import stat
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from structlog.testing import capture_logs

from retinue.core.errors import AgentUnreachableError, NotAuthenticatedError, StorageFullError
from retinue.core.record import Listing
from retinue.mcp.codec.foreign import Requests
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.runtime.imports.browser_login import log_in
from retinue.runtime.imports.logins import ImportLogin, Login, LoginFile, client_of, logins_folder
from retinue.runtime.imports.logout import Revocation, log_out, revoke
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.mcp.upstream.foreign_server import make_server
from tests.mcp.upstream.test_imports import running
from tests.runtime.authorization_server import AuthorizationServer, browse, serve_with_login
from tests.serving import serve_app

Browser = Callable[[str], None]


@pytest.fixture
async def server() -> AsyncIterator[AuthorizationServer]:
    async with serve_with_login() as server:
        yield server


@pytest.fixture
def state(retinue_home: Path) -> State:
    State(retinue_home).prepare()
    return State(retinue_home)


class Person:
    """Opens the pages of logins; ``seen`` are the last answers."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.seen: list[asyncio.Task[tuple[int, str]]] = []

    def show(self, page: str) -> None:
        self.pages.append(page)
        self.seen.append(asyncio.create_task(browse(page)))


async def _log_in(server: AuthorizationServer, person: Person, **table: str) -> Login:
    found = ImportTable.model_validate({"url": f"{server.resource_url}/mcp", **table})
    return await log_in("docs", found, Settings(), {}, show=person.show, timeout_s=20.0)


async def _start_session(server: AuthorizationServer, state: State) -> int:
    """The number of messages that the server answers to the first request."""
    url = f"{server.resource_url}/mcp"
    async with HttpClient() as http:
        login = ImportLogin(LoginFile(state, "docs", url), http)
        transport = HttpTransport("docs", http, url, {}, login.authorize)
        found = [one async for one in transport.exchange(Requests("test", "1").initialize())]
        await transport.aclose()
        return len(found)


async def test_a_login_by_the_browser_leads_to_tokens_that_open_the_server(
    server: AuthorizationServer, state: State
) -> None:
    with pytest.raises(AgentUnreachableError, match="it asks for a login: retinue imports login docs"):
        await _start_session(server, state)
    person = Person()
    login = await _log_in(server, person)
    status, text = await person.seen[0]
    assert (status, "close this window" in text) == (200, True)
    assert server.registered[0]["token_endpoint_auth_method"] == "none"
    assert server.registered[0]["redirect_uris"][0].startswith("http://127.0.0.1:")
    LoginFile(state, "docs", login.url).write(login)
    (file,) = logins_folder(state).iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(state.list_open_to_others()) == []
    assert await _start_session(server, state) == 1
    assert LoginFile(state, "docs", "http://other.example/mcp").read() is None


async def test_an_expired_or_revoked_token_is_renewed_once_for_all_and_nothing_of_it_is_logged(
    server: AuthorizationServer, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    login = await _log_in(server, Person())
    file = LoginFile(state, "docs", login.url)
    file.write(login)
    server.access.clear()
    with capture_logs() as lines:
        async with HttpClient() as http:
            renewing = ImportLogin(file, http)
            given = await renewing.authorize()
            several = await asyncio.gather(*(renewing.authorize(given) for _ in range(5)))
        assert len(set(several)) == 1
        assert several[0] != given
        assert server.requests["refresh_token"] == 1
        assert await _start_session(server, state) == 1
        server.access.clear()
        assert await _start_session(server, state) == 1
        assert server.requests["refresh_token"] == 2
        server.access.clear()
        server.token_error = "secret-of-the-server"
        with pytest.raises(AgentUnreachableError, match="it asks for a login"):
            await _start_session(server, state)
    assert "secret-" not in repr(lines) + caplog.text


async def test_a_token_that_is_about_to_expire_is_renewed_before_it_is_refused(
    server: AuthorizationServer, state: State
) -> None:
    server.expires_in = 5
    login = await _log_in(server, Person())
    LoginFile(state, "docs", login.url).write(login)
    refused = server.requests["refused"]
    server.expires_in = 3600
    assert await _start_session(server, state) == 1
    assert (server.requests["refresh_token"], server.requests["refused"]) == (1, refused)


def test_a_login_on_a_full_disk_keeps_the_old_one(state: State) -> None:
    url = "http://127.0.0.1:1/mcp"
    file = LoginFile(state, "docs", url)
    file.write(Login(url, {"access_token": "old"}, {}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(StorageFullError, match=r"no space left for .*docs\.json") as caught:
            file.write(Login(url, {"access_token": "new"}, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.remedy == "free some space"
    kept = LoginFile(state, "docs", url).read()
    assert kept is not None
    assert kept.tokens == {"access_token": "old"}
    assert [path.name for path in logins_folder(state).iterdir()] == ["docs.json"]


async def test_a_redirect_with_another_state_is_refused_and_the_login_goes_on(
    server: AuthorizationServer,
) -> None:
    class Attacked(Person):
        def show(self, page: str) -> None:
            self.seen.append(asyncio.create_task(self._attack(page)))

        async def _attack(self, page: str) -> tuple[int, str]:
            back = parse_qs(urlsplit(page).query)["redirect_uri"][0]
            forged = await browse(f"{back}?{urlencode({'code': 'theirs', 'state': 'theirs'})}")
            assert (await browse(back.replace("/callback", "/else")))[0] == 404
            await browse(page)
            return forged

    person = Attacked()
    login = await _log_in(server, person)
    assert login.tokens["access_token"] in server.access
    status, text = await person.seen[0]
    assert (status, "It was refused" in text) == (400, True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answer": {"iss": "https://evil.example"}}, "iss"),
        ({"issuer": "https://evil.example"}, "issuer"),
        ({"resource": "https://evil.example/mcp"}, "does not match"),
        ({"answer": {"error": "access_denied", "error_description": "not you"}}, "not you"),
        ({"token_error": "secret-detail"}, "gave no token"),
    ],
)
async def test_what_is_not_in_order_is_refused_and_stores_nothing(
    changes: dict[str, object], said: str, server: AuthorizationServer
) -> None:
    for name, value in changes.items():
        setattr(server, name, value)
    with pytest.raises(NotAuthenticatedError) as refused:
        await _log_in(server, Person())
    assert said in refused.value.message
    assert "secret-detail" not in refused.value.message


async def test_a_client_that_a_person_registered_or_describes_needs_no_registration(
    server: AuthorizationServer,
) -> None:
    login = await _log_in(server, Person(), client_id="by-hand")
    assert login.client["client_id"] == "by-hand"
    document = "https://example.com/retinue.json"
    server.reads_client_metadata = True
    server.clients.add(document)
    login = await _log_in(server, Person(), client_metadata_url=document)
    assert login.client["client_id"] == document
    assert server.requests["register"] == 0


@pytest.mark.parametrize("client_id", [None, "by-hand"])
@pytest.mark.parametrize(
    ("methods", "said"), [(None, "does not name code_challenge"), (["plain"], "names plain, not S256")]
)
async def test_a_server_that_is_not_known_to_support_pkce_is_refused(
    methods: list[str] | None, said: str, client_id: str | None, server: AuthorizationServer
) -> None:
    server.methods = methods
    with pytest.raises(NotAuthenticatedError, match=said) as refused:
        await _log_in(server, Person(), **({} if client_id is None else {"client_id": client_id}))
    assert "--token-env" in str(refused.value.remedy)
    assert (server.requests["register"], server.requests["authorize"]) == (0, 0)


async def test_a_server_that_registers_no_client_names_the_option(server: AuthorizationServer) -> None:
    server.registers = False
    with pytest.raises(NotAuthenticatedError, match="registers no client by itself") as refused:
        await _log_in(server, Person())
    assert "--client-id ID" in str(refused.value.remedy)


async def test_the_secret_of_a_client_is_kept_as_its_reference(
    server: AuthorizationServer, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCS_SECRET", "very-secret")
    table = ImportTable(url=f"{server.resource_url}/mcp", client_id="by-hand", client_secret="${DOCS_SECRET}")
    own = {"DOCS_SECRET": "very-secret"}
    login = await log_in("docs", table, Settings(), own, show=Person().show, timeout_s=20.0)
    file = LoginFile(state, "docs", login.url)
    file.write(login)
    content = (logins_folder(state) / "docs.json").read_text()
    assert "very-secret" not in content
    assert "${DOCS_SECRET}" in content
    assert client_of(login)["client_secret"] == "very-secret"
    server.access.clear()
    assert await _start_session(server, state) == 1
    assert "very-secret" not in (logins_folder(state) / "docs.json").read_text()


async def test_a_refused_refresh_token_is_dropped(server: AuthorizationServer, state: State) -> None:
    login = await _log_in(server, Person())
    LoginFile(state, "docs", login.url).write(login)
    server.access.clear()
    server.refresh.clear()
    for _ in range(3):
        with pytest.raises(AgentUnreachableError, match="it asks for a login"):
            await _start_session(server, state)
    assert server.requests["refresh_token"] == 1
    kept = LoginFile(state, "docs", login.url).read()
    assert kept is not None
    assert "refresh_token" not in kept.tokens


async def test_a_logout_revokes_both_tokens_and_removes_the_login(
    server: AuthorizationServer, state: State
) -> None:
    login = await _log_in(server, Person())
    file = LoginFile(state, "docs", login.url)
    file.write(login)
    assert await log_out(file, Settings()) == Revocation()
    hints = [form["token_type_hint"] for form in server.revoked]
    assert hints == ["refresh_token", "access_token"]
    assert {form["client_id"] for form in server.revoked} == {login.client["client_id"]}
    assert (server.access, server.refresh) == (set(), set())
    assert not list(logins_folder(state).iterdir())
    assert await log_out(file, Settings()) is None


async def test_a_client_with_a_secret_logs_out_with_it(
    server: AuthorizationServer, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCS_SECRET", "s:1")
    login = Login(
        f"{server.resource_url}/mcp",
        {"access_token": "a"},
        {"client_id": "by-hand"},
        {"revocation_endpoint": f"{server.url}/revoke"},
        client_secret="${DOCS_SECRET}",
    )
    async with HttpClient() as http:
        assert await revoke(login, http) == Revocation()
    pair = b64encode(b"by-hand:s%3A1").decode()
    assert server.revoked == [
        {"token": "a", "token_type_hint": "access_token", "authorization": f"Basic {pair}"}
    ]


@pytest.mark.parametrize(
    ("path", "said"),
    [(None, "offers no revocation"), ("/nowhere", "answers with status 404")],
)
async def test_a_login_is_removed_though_the_server_revokes_nothing(
    server: AuthorizationServer, state: State, path: str | None, said: str
) -> None:
    server.revokes = path
    login = await _log_in(server, Person())
    file = LoginFile(state, "docs", login.url)
    file.write(login)
    revocation = await log_out(file, Settings())
    assert revocation is not None
    assert said in revocation.problem
    assert not list(logins_folder(state).iterdir())


async def test_metadata_of_a_public_server_is_not_read_from_private_addresses(
    server: AuthorizationServer,
) -> None:
    table = ImportTable(url=f"{server.resource_url}/mcp")
    closed = Settings(allow_private_urls=False)
    with pytest.raises(NotAuthenticatedError, match="the address is not public"):
        await log_in("docs", table, closed, {}, show=Person().show, timeout_s=60.0)


async def test_a_login_ends_when_nobody_comes(server: AuthorizationServer) -> None:
    table = ImportTable(url=f"{server.resource_url}/mcp")
    with pytest.raises(NotAuthenticatedError, match=r"nobody logged in within 0.1 s"):
        await log_in("docs", table, Settings(), {}, show=lambda page: None, timeout_s=0.1)


async def test_a_server_that_is_open_asks_for_no_login() -> None:
    async with serve_app(make_server().streamable_http_app()) as url:
        table = ImportTable(url=f"{url}/mcp")
        with pytest.raises(NotAuthenticatedError, match="docs asks for no login"):
            await log_in("docs", table, Settings(), {}, show=Person().show, timeout_s=60.0)


async def test_a_login_with_too_few_rights_for_a_session_is_listed_with_the_command_that_mends_it(
    server: AuthorizationServer, state: State
) -> None:
    login = await _log_in(server, Person())
    file = LoginFile(state, "docs", login.url)
    file.write(login)
    server.wanted = {"initialize": "files:read", "tools/list": "files:list"}
    async with HttpClient() as http:

        def connect() -> HttpTransport:
            return HttpTransport("docs", http, login.url, {}, ImportLogin(file, http).authorize)

        async with running(ImportSpec("docs", connect, login.url)) as imports:
            for scope in ("files:read", "files:list"):
                command = f"retinue imports login docs --scope {scope}"
                wanted = f"server docs asks for a login with more rights: {scope}; {command}"
                await imports.until("docs", partial(_is_listed_with, wanted))
                table = ImportTable(url=login.url)
                more = file.add_scopes(scope)
                file.write(
                    await log_in(
                        "docs", table, Settings(), {}, show=Person().show, timeout_s=20.0, scope=more
                    )
                )
                imports.servers.retry()
            await imports.until("docs", lambda one: one.health == "healthy")


def _is_listed_with(reason: str, listing: Listing) -> bool:
    return listing.last_error == reason


def _file(state: State) -> LoginFile:
    return LoginFile(state, "docs", "http://127.0.0.1:1/mcp")


async def test_a_token_in_the_headers_that_has_too_few_rights_is_refused_with_the_scope(
    server: AuthorizationServer, state: State
) -> None:
    """A login would not be used beside it, so the command is not offered."""
    login = await _log_in(server, Person())
    server.wanted = {"initialize": "files:read"}
    async with HttpClient() as http:
        headers = {"Authorization": login.authorization}
        transport = HttpTransport("docs", http, login.url, headers, ImportLogin(_file(state), http).authorize)
        with pytest.raises(AgentUnreachableError) as refused:
            await anext(transport.exchange(Requests("test", "1").initialize()))
    assert refused.value.cause == "the token in its headers lacks the scope files:read"
