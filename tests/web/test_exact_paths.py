"""The router with a look-up of literal paths answers as Starlette's own router does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router

from retinue.web.fast.exact_paths import ExactPathRouter


def named(name: str) -> Any:
    async def answer(request: Request) -> Response:
        return PlainTextResponse(f"{name} {request.path_params}")

    return answer


ROUTES = [
    Route("/agents/{agent}/mcp", named("relay"), methods=["POST"]),
    Route("/agents/me/mcp", named("shadowed"), methods=["POST", "GET"]),
    Route("/mcp", named("mcp"), methods=["POST"]),
    Route("/mcp", named("stream"), methods=["GET"]),
    Mount("/ui", routes=[Route("/page", named("page"))]),
    Route("/ui/page", named("behind a mount")),
    Route("/slash/", named("slash")),
    Route("/agents/{agent}/mcp", named("second"), methods=["GET", "POST"]),
    Route("/agents/{agent}/card", named("card"), methods=["GET"]),
    Route("/rooms/{room:int}/card", named("number"), methods=["GET"]),
    Route("/rooms/{rest:path}", named("rest"), methods=["GET"]),
    Route("/rooms/{room}/map", named("never"), methods=["GET"]),
    Route("/agents/me/card", named("never"), methods=["GET"]),
]


async def ask(app: Router, method: str, path: str, root: str) -> tuple[int, bytes, Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root,
        "query_string": b"",
        "headers": [(b"host", b"here")],
        "server": ("here", 80),
        "scheme": "http",
    }
    await app(scope, receive, send)
    headers = dict(sent[0]["headers"])
    return sent[0]["status"], sent[1]["body"], headers.get(b"location")


@pytest.mark.parametrize("root", ["", "/mcp"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "BREW"])
@pytest.mark.parametrize(
    "path",
    [
        "/mcp",
        "/mcp/",
        "/agents/me/mcp",
        "/agents/other/mcp",
        "/ui/page",
        "/slash/",
        "/slash",
        "/",
        "/mcp/mcp",
        "/agents/other/card",
        "/agents/me/card",
        "/agents//card",
        "/agents/other/card/",
        "/agents/a b\n/card",
        "/rooms/7/card",
        "/rooms/seven/card",
        "/rooms/7/map",
    ],
)
def test_every_path_is_answered_as_by_the_routes_in_order(path: str, method: str, root: str) -> None:
    found = asyncio.run(ask(ExactPathRouter(ROUTES), method, path, root))
    assert found == asyncio.run(ask(Router(ROUTES), method, path, root))


def test_a_literal_path_does_not_try_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    router = ExactPathRouter(ROUTES)
    monkeypatch.setattr(Route, "matches", None)
    assert asyncio.run(ask(router, "POST", "/mcp", ""))[1] == b"mcp {}"
    assert asyncio.run(ask(router, "GET", "/mcp", ""))[1] == b"stream {}"


def test_a_parameter_between_two_names_does_not_try_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Route("/agents/{agent}/card", named("card"), methods=["GET"])
    router = ExactPathRouter([*ROUTES[:4], card, *ROUTES[4:]])
    monkeypatch.setattr(Route, "matches", None)
    assert asyncio.run(ask(router, "POST", "/agents/x/mcp", ""))[1] == b"relay {'agent': 'x'}"
    assert asyncio.run(ask(router, "GET", "/agents/x/card", ""))[1] == b"card {'agent': 'x'}"
