"""The clock of a machine is set while logins, sessions, keys and signatures are in use.

The monotonic clock goes on, as on a real machine. Programs are tried in tests/crash/test_clock_steps.py.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from retinue.cards.signatures import CardSigner, SigningKey, TrustedKeys
from retinue.core.record import AgentRecord, Endpoint
from retinue.dashboard.sessions import BrowserSessions
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.card_publication import CardPublication
from retinue.runtime.imports.logins import ImportLogin, Login, LoginFile
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.jwt_tokens import CLOCK_SKEW_S, JwtReader, JwtSettings
from tests.runtime.authorization_server import AuthorizationServer, serve_with_login
from tests.runtime.test_import_logins import Person, _log_in, _start_session
from tests.serving import serve_app
from tests.web.test_jwt_tokens import AUDIENCE, HOST, ISSUER, KEYS, Issuer, make_token

STEPS_S = [-3600.0, -120.0, 3600.0]


class Clock:
    """The wall clock of this process."""

    def __init__(self) -> None:
        self.offset_s = 0.0


def read_clock() -> float:
    """The clock as it is set now; defaults of arguments are the real one."""
    return time.time()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, real = Clock(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + clock.offset_s)
    return clock


@pytest.fixture
def state(retinue_home: Path) -> State:
    State(retinue_home).prepare()
    return State(retinue_home)


@pytest.fixture
async def server() -> AsyncIterator[AuthorizationServer]:
    async with serve_with_login() as server:
        yield server


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_a_login_opens_its_server_whenever_the_clock_was_set(
    server: AuthorizationServer, state: State, clock: Clock, step_s: float
) -> None:
    LoginFile(state, "docs", f"{server.resource_url}/mcp").write(await _log_in(server, Person()))
    clock.offset_s = step_s
    assert await _start_session(server, state) > 0
    clock.offset_s = 0.0
    assert await _start_session(server, state) > 0


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_a_token_that_cannot_be_renewed_is_used_until_its_server_refuses_it(
    state: State, clock: Clock, step_s: float
) -> None:
    url = "http://127.0.0.1:1/mcp"
    file = LoginFile(state, "docs", url)
    file.write(Login(url, {"access_token": "good"}, {}, expires_at=time.time() + 1800))
    async with HttpClient() as http:
        login = ImportLogin(file, http)
        clock.offset_s = step_s
        assert await login.authorize() == "Bearer good"
        assert await login.authorize("Bearer good") is None


@pytest.mark.parametrize("step_s", STEPS_S)
def test_sessions_and_one_time_links_last_as_long_as_before(clock: Clock, step_s: float) -> None:
    sessions = BrowserSessions()
    session, link = sessions.begin(b"token", "ada"), sessions.make_link(b"token", "ada")
    clock.offset_s = step_s
    assert sessions.find(session) == b"token"
    code = link.rpartition("/")[2]
    assert sessions.use_link(code) is not None
    assert sessions.use_link(code) is None


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_the_keys_of_an_issuer_are_not_read_again_and_new_tokens_are_good(
    clock: Clock, step_s: float
) -> None:
    issuer = Issuer(*KEYS.values())
    async with serve_app(issuer) as url, HttpClient() as http:
        settings = JwtSettings(issuer=ISSUER, audiences=(AUDIENCE,), jwks_url=f"{url}/jwks")
        reader = JwtReader(settings, http, clock=read_clock)
        known = make_token(nbf=None, exp=time.time() + 7200).encode()
        assert await reader.read(known, HOST) is not None
        clock.offset_s = step_s
        assert await reader.read(known, HOST) is not None
        # issued by a machine with the right clock, and by one whose clock was set as well
        for now in (time.time() - step_s, time.time()):
            token = make_token(nbf=None, iat=now, exp=now + 3600 + 2 * CLOCK_SKEW_S).encode()
            assert await reader.read(token, HOST) is not None
        assert issuer.asked == 1


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_signature_of_a_card_is_valid_whenever_the_clock_was_set(clock: Clock, step_s: float) -> None:
    key = SigningKey.create()
    trusted = TrustedKeys({"publisher": {"keys": [key.public]}})
    before = CardSigner(key, valid_days=1.0, clock=read_clock).sign(b"card")
    clock.offset_s = step_s
    assert trusted.verify([before], [b"card"]).state == "valid"
    after = CardSigner(key, valid_days=1.0, clock=read_clock).sign(b"card")
    clock.offset_s = 0.0
    assert trusted.verify([after], [b"card"]).state == "valid"


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_a_served_card_has_a_valid_signature_after_the_clock_was_set_and_set_right(
    tmp_path: Path, clock: Clock, step_s: float
) -> None:
    key = SigningKey.create()
    trusted = TrustedKeys({"publisher": {"keys": [key.public]}})
    record = AgentRecord(
        name="signed-agent", version="1.0.0", endpoints=(Endpoint("execute", "http://[::1]:1"),)
    )
    registry = LayoutRegistry(tmp_path)
    async with HttpClient() as http:
        signer = CardSigner(key, valid_days=1 / 24, clock=read_clock)
        publication = CardPublication(
            registry, lambda: record, "v1", http, lambda line: None, probe_timeout_s=10.0, signer=signer
        )
        await publication.publish()
        for offset_s in (step_s, 0.0):
            clock.offset_s = offset_s
            await publication.check()
            artifact = await registry.pull(publication.reference)
            assert trusted.verify(list(artifact.signatures), [artifact.content]).state == "valid"
