"""The endpoint of notifications: who may use it, what it reads, what it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import orjson
import pytest
from starlette.applications import Starlette

from retinue.core.errors import BusyError
from retinue.oci.codec.notifications import EVENTS_TYPE, MAX_EVENTS, RegistryEvent
from retinue.oci.server.webhooks import HOOK_PATH, HOOK_TOKEN, MAX_BODY_BYTES, hook_route
from retinue.web.security import LOCAL_TOKEN, SecurityMiddleware, SecuritySettings, Tokens
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import Reply, Wire, open_wire

PUSH = {"action": "push", "target": {"repository": "agents/plan", "tag": "v1"}}
ENVELOPE = orjson.dumps({"events": [PUSH]})


@dataclass
class Taken:
    """Stands behind the endpoint."""

    events: list[RegistryEvent] = field(default_factory=list)
    busy: bool = False

    def __call__(self, events: Sequence[RegistryEvent]) -> None:
        if self.busy:
            raise BusyError("too much", 1.0)
        self.events += events


@dataclass
class Endpoint:
    url: str
    wire: Wire
    taken: Taken

    async def send(
        self, body: bytes, token: str | None = "hook", content_type: str = EVENTS_TYPE, **more: str
    ) -> Reply:
        sent = {"content_type": content_type, **more}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        return await self.wire.post(self.url + HOOK_PATH, body, **sent)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    taken = Taken()
    settings = SecuritySettings(any_media_type=(HOOK_PATH,))
    app = Starlette(routes=[hook_route(taken)])
    tokens = Tokens({"hook": HOOK_TOKEN, "local": LOCAL_TOKEN})
    async with (
        serve_app(SecurityMiddleware(app, settings, tokens)) as url,
        open_wire() as wire,
    ):
        yield Endpoint(url, wire, taken)


@requirement("P-30")
@pytest.mark.parametrize("token", ["hook", "local"])
async def test_a_push_is_taken_from_whoever_has_a_token(endpoint: Endpoint, token: str) -> None:
    reply = await endpoint.send(ENVELOPE, token)
    assert (reply.status, reply.json) == (202, {"accepted": 1})
    assert [(e.action, e.repository, e.tag) for e in endpoint.taken.events] == [("push", "agents/plan", "v1")]


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_without_a_known_token_nothing_is_taken(endpoint: Endpoint, token: str | None) -> None:
    reply = await endpoint.send(ENVELOPE, token)
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert endpoint.taken.events == []


async def test_what_does_not_matter_is_answered_and_forgotten(endpoint: Endpoint) -> None:
    reply = await endpoint.send(orjson.dumps({"events": [{**PUSH, "action": "pull"}]}))
    assert (reply.status, endpoint.taken.events) == (200, [])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"junk", 400),
        (b"[]", 400),
        (b" " * (MAX_BODY_BYTES + 1), 413),
        (orjson.dumps({"events": [PUSH] * (MAX_EVENTS + 1)}), 413),
    ],
)
async def test_junk_is_refused(endpoint: Endpoint, body: bytes, status: int) -> None:
    assert (await endpoint.send(body)).status == status
    assert endpoint.taken.events == []


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/vnd.docker.distribution.events.v1+json", 202),
        ("application/json; charset=utf-8", 202),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
async def test_only_the_media_types_of_notifications_are_read(
    endpoint: Endpoint, content_type: str, status: int
) -> None:
    assert (await endpoint.send(ENVELOPE, content_type=content_type)).status == status


async def test_a_web_page_may_not_notify_even_with_a_token(endpoint: Endpoint) -> None:
    assert (await endpoint.send(ENVELOPE, origin="http://evil.example")).status == 403


async def test_a_full_hub_asks_to_be_told_again(endpoint: Endpoint) -> None:
    endpoint.taken.busy = True
    reply = await endpoint.send(ENVELOPE)
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")
