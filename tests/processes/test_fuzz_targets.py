"""The fuzz has a request for every route of a hub and of an agent, as their processes serve them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp

from retinue.authoring.agent import Agent
from retinue.rest.routes import RestRoutes
from retinue.runtime import run_process
from retinue.runtime.agent_process import ServeOptions, serve_agent
from retinue.runtime.hub_process import HubOptions, run_hub
from retinue.runtime.launch import Address
from retinue.runtime.loading.targets import Target as Served
from retinue.settings import Settings, settings_class
from retinue.settings_tables import AuthTable, HubTable
from retinue.storage.state import State
from retinue_koi.table import KoiTable
from tests.processes.fuzz_targets import AGENT_TARGETS, HUB_TARGETS, Target

CONTACT = "http://127.0.0.1:9/koi-net"


class ServedError(Exception):
    """Ends a process at the point where it would begin to serve its app."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__("the app is complete")
        self.app = app


def take_app(app: ASGIApp, listener: socket.socket, *options: Any) -> Any:
    listener.close()
    raise ServedError(app)


def list_routes(app: Any) -> list[Route]:
    """The routes of the router behind the middleware, those of RestRoutes included."""
    while not isinstance(app, Router):
        app = app._app
    return list(_flatten(app.routes))


def _flatten(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    for route in routes:
        if isinstance(route, RestRoutes):
            yield from _flatten(route.routes)
        else:
            assert isinstance(route, Route), f"the fuzz does not know what is below {route!r}"
            yield route


def list_uncovered(routes: Sequence[Route], targets: Sequence[Target]) -> set[tuple[str, str]]:
    """Methods and paths of routes that no target reaches; of a route for every method, one is enough."""
    reached: set[tuple[str, str]] = set()
    for target in targets:
        path = unquote(urlsplit(target.path).path)
        scope = {"type": "http", "method": target.method, "path": path, "headers": []}
        route = next((one for one in routes if one.matches(dict(scope))[0] is Match.FULL), None)
        if route is not None:
            reached.add((target.method, route.path))
    wanted = set[tuple[str, str]]()
    for route in routes:
        methods = (route.methods or set()) - {"HEAD"}
        if route.path == "/v2/{rest:path}" or not methods:
            if not any(path == route.path for _, path in reached):
                wanted.add(("any", route.path))
        else:
            wanted |= {(method, route.path) for method in methods}
    return wanted - reached


@pytest.fixture
def settings() -> Settings:
    koi = KoiTable(enabled=True, member_join=CONTACT)
    return settings_class()(
        auth=AuthTable(authorization_servers=("http://127.0.0.1:9/",)), koi=koi, hub=HubTable(models=())
    )


async def test_every_route_of_a_hub_has_a_request_of_the_fuzz(
    retinue_home: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_process, "serving", take_app)
    options = HubOptions(Address(), bare=True)
    with pytest.raises(ServedError) as served:
        await run_hub(options, settings, State(retinue_home), print)
    routes = list_routes(served.value.app)
    assert list_uncovered(routes, HUB_TARGETS) == set()
    assert list_uncovered(routes, AGENT_TARGETS) != set()


async def test_every_route_of_an_agent_has_a_request_of_the_fuzz(
    retinue_home: Path, settings: Settings, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("echo-agent", version="1.0.0")

    @agent.skill(expose=True)
    async def echo(text: str) -> str:
        """Gives the text back."""
        return text

    monkeypatch.setattr(run_process, "serving", take_app)
    options = ServeOptions(Address(port=port, search=True))
    with pytest.raises(ServedError) as served:
        await serve_agent(Served(agent, ()), options, settings, State(retinue_home), print)
    assert list_uncovered(list_routes(served.value.app), AGENT_TARGETS) == set()
