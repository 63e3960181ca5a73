"""A docker-registry tells the hub what was pushed and deleted, and the hub reads just that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from retinue.core.errors import InvalidSettingError
from retinue.oci.codec.notifications import EVENTS_TYPE
from retinue.oci.registry import CopyableRegistry, forget, open_registry
from retinue.runtime.endpoints.registry import hook_tokens
from retinue.runtime.mesh import Mesh
from retinue.settings_tables import HookTable
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.ports import reserve_port
from tests.requirements import requirement
from tests.services import docker_registry
from tests.system import Hub, System, open_system, open_wire, publish

WAIT_S = 60.0
TOKEN = "a-token-for-the-registry"
VARIABLE = "TOKEN_OF_THE_REGISTRY"
# Nothing but a notification may be the reason why a hub of these tests knows something.
SELDOM = {"ttl_s": 3600.0, "refresh_s": 3600.0}


def card(name: str, skill: str) -> bytes:
    return orjson.dumps({"name": name, "url": "http://localhost:8001", "skills": [{"id": skill}]})


@dataclass
class Pair:
    """A registry that notifies a hub, and the system that the hub belongs to."""

    system: System
    registry: CopyableRegistry
    hub_port: int

    async def start_hub(self) -> Hub:
        hub = await self.system.start_hub(port=self.hub_port)
        await hub.mesh.directory.refresh()
        return hub


@asynccontextmanager
async def pair(folder: Path, token: str, **hooks: str) -> AsyncIterator[Pair]:
    hub_port, registry_port = reserve_port(), reserve_port()
    url = f"http://127.0.0.1:{registry_port}"
    state = State(folder / "state")
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(
            open_system(state, registries=(url,), directory=SELDOM, hooks=hooks)
        )
        data = folder / "registry"
        data.mkdir()
        told = (f"http://127.0.0.1:{hub_port}/hooks/registry", token or state.local_token())
        stack.enter_context(docker_registry(data, port=registry_port, notified=told))
        client = await stack.enter_async_context(HttpClient())
        yield Pair(system, open_registry(url, client), hub_port)


async def until(mesh: Mesh, holds: Callable[[], bool]) -> None:
    """Wait until something holds of the directory, which is looked at after each change."""
    changed = asyncio.Event()
    end = mesh.directory.subscribe(lambda _: changed.set())
    try:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await changed.wait()
                changed.clear()
    finally:
        end()


def skills(mesh: Mesh) -> set[str]:
    return {
        skill.id for one in mesh.directory.list_all() if "://" in one.source for skill in one.record.skills
    }


@requirement("P-30")
async def test_a_push_a_new_tag_and_a_deletion_are_seen_without_a_refresh(tmp_path: Path) -> None:
    async with pair(tmp_path, "") as both:
        hub = await both.start_hub()
        assert skills(hub.mesh) == set()
        await publish(both.registry, card("plan-agent", "create_plan"))
        await until(hub.mesh, lambda: skills(hub.mesh) == {"create_plan"})
        await publish(both.registry, card("plan-agent", "improve_plan"), tag="v2")
        await until(hub.mesh, lambda: skills(hub.mesh) == {"improve_plan"})
        await publish(both.registry, card("build-agent", "build"))
        await until(hub.mesh, lambda: skills(hub.mesh) == {"build", "improve_plan"})
        await forget(both.registry, "plan-agent")
        await until(hub.mesh, lambda: skills(hub.mesh) == {"build"})
        assert hub.mesh.directory.problems() == ()


@requirement("P-30")
async def test_the_token_of_the_settings_opens_this_endpoint_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    async with pair(tmp_path, TOKEN, token_env=VARIABLE) as both:
        hub = await both.start_hub()
        await publish(both.registry, card("plan-agent", "create_plan"))
        await until(hub.mesh, lambda: skills(hub.mesh) == {"create_plan"})
        bearer = f"Bearer {TOKEN}"
        async with open_wire() as wire:
            url = f"{hub.url}/v2/agents/x/blobs/uploads/"
            assert (await wire.post(url, b"", authorization=bearer)).status == 401
            reply = await wire.call(hub.url, "list_agents", {}, authorization=bearer)
            assert "error" in reply.json


@pytest.mark.parametrize("environ", [{VARIABLE: " "}, {}])
def test_a_variable_without_a_token_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidSettingError, match=VARIABLE):
        hook_tokens(HookTable(token_env=VARIABLE), environ)


async def test_a_wrong_token_changes_nothing_and_the_next_refresh_finds_it_all_the_same(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, "wrong") as both:
        hub = await both.start_hub()
        await publish(both.registry, card("plan-agent", "create_plan"))
        envelope = orjson.dumps({"events": [{"action": "push", "target": {"repository": "agents/plan"}}]})
        async with open_wire() as wire:
            url = f"{hub.url}/hooks/registry"
            for token in ("wrong", None):
                headers = {} if token is None else {"authorization": f"Bearer {token}"}
                reply = await wire.post(url, envelope, content_type=EVENTS_TYPE, **headers)
                assert reply.status == 401
        assert hub.mesh.registries.notifications.pending == frozenset()
        assert skills(hub.mesh) == set()
        await hub.mesh.directory.refresh()
        assert skills(hub.mesh) == {"create_plan"}


async def test_what_was_pushed_while_the_hub_was_down_is_told_when_it_is_up(tmp_path: Path) -> None:
    async with pair(tmp_path, "") as both:
        await publish(both.registry, card("plan-agent", "create_plan"))
        await forget(both.registry, "plan-agent")
        await publish(both.registry, card("build-agent", "build"))
        # No refresh here: the registry keeps what it could not say, and says it in order.
        hub = await both.system.start_hub(port=both.hub_port)
        await until(hub.mesh, lambda: skills(hub.mesh) == {"build"})


async def test_what_is_no_card_is_passed_over_and_junk_refused(tmp_path: Path) -> None:
    async with pair(tmp_path, "") as both:
        hub = await both.start_hub()
        async with open_wire() as wire:
            url, token = f"{hub.url}/hooks/registry", both.system.token
            junk = await wire.post(url, b"{no json", content_type=EVENTS_TYPE, authorization=token)
            assert junk.status == 400
            named = [
                {"action": "push", "target": {"repository": name}} for name in ("library/no", "agents/no")
            ]
            body = orjson.dumps({"events": named})
            told = await wire.post(url, body, content_type=EVENTS_TYPE, authorization=token)
            assert (told.status, told.json) == (202, {"accepted": 2})
        await publish(both.registry, card("plan-agent", "create_plan"))
        await until(hub.mesh, lambda: skills(hub.mesh) == {"create_plan"})
        assert hub.mesh.directory.problems() == ()
