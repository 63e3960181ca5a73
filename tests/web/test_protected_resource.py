"""What OAuth clients are told: the metadata of the resource, and the challenge beside each refusal."""

from __future__ import annotations

import re

import orjson
import pytest
from starlette.applications import Starlette

from retinue.core.call import Principal
from retinue.core.errors import InsufficientScopeError, NotAuthenticatedError
from retinue.oci.server.webhooks import hook_route
from retinue.rpc.server import health_route
from retinue.web.rejections import ProtectedResource, metadata_routes
from retinue.web.security import LOCAL_TOKEN, SecurityMiddleware, SecuritySettings, Tokens
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import Wire, open_wire

RESOURCE = ProtectedResource(["https://login.example.org"], ["exposed", "mesh", "runs_code"])
WELL_KNOWN = "/.well-known/oauth-protected-resource"


class Reader:
    """Knows the tokens "good", and "poor", which has no scope."""

    async def read(self, token: bytes, host: str) -> Principal | None:
        if token == b"poor":
            raise InsufficientScopeError('no "scope"\n', scopes=("exposed", "mesh"))
        if token == b"old":
            raise NotAuthenticatedError("this token has expired")
        return Principal("bob", "token") if token == b"good" else None


def make_app(resource: ProtectedResource | None = RESOURCE, *, anonymous: bool = False) -> SecurityMiddleware:
    routes = [health_route(), hook_route(lambda events: None), *metadata_routes(resource)]
    settings = SecuritySettings(anonymous=anonymous, resource=resource)
    return SecurityMiddleware(Starlette(routes=routes), settings, Tokens({"s3cret": LOCAL_TOKEN}), [Reader()])


def read_challenge(text: str) -> dict[str, str]:
    scheme, _, rest = text.partition(" ")
    assert scheme == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"', rest))


@requirement("S-16")
@pytest.mark.parametrize("endpoint", ["", "/mcp", "/agents/plan-agent/mcp"])
async def test_the_metadata_needs_no_token_and_names_the_endpoint(endpoint: str) -> None:
    async with serve_app(make_app()) as url, open_wire() as wire:
        reply = await wire.get(f"{url}{WELL_KNOWN}{endpoint}")
    assert reply.status == 200
    assert reply.json == {
        "resource": f"{url}{endpoint}",
        "authorization_servers": ["https://login.example.org"],
        "scopes_supported": ["exposed", "mesh", "runs_code"],
        "bearer_methods_supported": ["header"],
    }


async def test_behind_a_proxy_the_resource_is_what_the_settings_say() -> None:
    resource = ProtectedResource(["https://a"], ["mesh"], "https://hub.example.org/")
    async with serve_app(make_app(resource)) as url, open_wire() as wire:
        reply = await wire.get(f"{url}{WELL_KNOWN}/mcp")
        refused = await wire.post(f"{url}/mcp", {})
    assert reply.json["resource"] == "https://hub.example.org/mcp"
    told = read_challenge(refused.headers["www-authenticate"])
    assert told["resource_metadata"] == f"https://hub.example.org{WELL_KNOWN}/mcp"


async def test_without_an_authorization_server_there_is_no_metadata() -> None:
    async with serve_app(make_app(None)) as url, open_wire() as wire:
        refused = await wire.get(url, authorization="Bearer wrong")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert (await wire.get(f"{url}{WELL_KNOWN}")).status == 404


@requirement("S-16")
@pytest.mark.parametrize(
    "path",
    [
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-authorization-server/mcp",
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/agents/plan-agent/mcp",
    ],
)
@pytest.mark.parametrize("resource", [None, RESOURCE])
async def test_a_client_that_looks_for_a_login_is_told_that_none_is_here(
    path: str, resource: ProtectedResource | None
) -> None:
    async with serve_app(make_app(resource)) as url, open_wire() as wire:
        missing = await wire.get(url + path)
        assert (missing.status, missing.headers.get("www-authenticate")) == (404, None)
        for elsewhere in ("/.well-known/agent-card.json", "/mcp/.well-known/openid-configuration"):
            assert (await wire.get(url + elsewhere)).status == 401


async def ask(wire: Wire, url: str, token: str | None) -> tuple[int, dict[str, str]]:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    reply = await wire.post(f"{url}/mcp", {}, **headers)
    return reply.status, read_challenge(reply.headers["www-authenticate"])


@requirement("S-16")
async def test_each_refusal_of_a_token_points_to_the_metadata() -> None:
    async with serve_app(make_app()) as url, open_wire() as wire:
        metadata = {"resource_metadata": f"{url}{WELL_KNOWN}/mcp"}
        # RFC 6750, 3.1: no error for whoever sent nothing
        assert await ask(wire, url, None) == (401, {**metadata, "scope": "exposed"})
        status, told = await ask(wire, url, "wrong")
        assert (status, told["error"]) == (401, "invalid_token")
        assert told["resource_metadata"] == metadata["resource_metadata"]
        status, told = await ask(wire, url, "old")
        assert (status, told["error_description"]) == (401, "this token has expired")
        status, told = await ask(wire, url, "poor")
        assert status == 403
        assert (told["error"], told["scope"], told["error_description"]) == (
            "insufficient_scope",
            "exposed mesh",
            "no scope",
        )


async def test_an_endpoint_that_wants_another_token_says_so_in_the_same_way() -> None:
    async with serve_app(make_app(anonymous=True)) as url, open_wire() as wire:
        reply = await wire.post(f"{url}/hooks/registry", {})
        assert reply.status == 401
        told = read_challenge(reply.headers["www-authenticate"])
        assert told["resource_metadata"] == f"{url}{WELL_KNOWN}/hooks/registry"


async def test_registry_clients_are_told_what_they_understand() -> None:
    async with serve_app(make_app()) as url, open_wire() as wire:
        for token in ({}, {"authorization": "Bearer wrong"}):
            reply = await wire.get(f"{url}/v2/", **token)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, 'Basic realm="retinue"')


async def test_a_name_that_is_no_endpoint_is_not_sent_back_without_bounds() -> None:
    async with serve_app(make_app()) as url, open_wire() as wire:
        assert (await wire.get(f"{url}{WELL_KNOWN}/{'x' * 501}")).status == 404
        body = (await wire.get(f"{url}{WELL_KNOWN}/%3Cscript%3E%22")).body
    assert orjson.loads(body)["resource"] == f"{url}/%3Cscript%3E%22"
