"""A running hub as a registry: other people's programs push with the state's token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import oras.client  # type: ignore[import-untyped]
import orjson
import pytest

from retinue.core.errors import RegistryLoginError, RemoteFaultError, UnknownAgentError
from retinue.oci.codec.reference import Reference
from retinue.oci.registry import open_registry
from retinue.runtime.commands.client import open_client
from retinue.runtime.commands.publishing import mirror_registries, open_catalog
from retinue.runtime.loading.publishables import Card
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.registry.places import with_login
from tests.requirements import requirement
from tests.seeds.seed_001 import PLAN, plan_agent
from tests.services import get_program
from tests.system import System, open_system

CARD = orjson.dumps(
    {"name": "pushed-agent", "url": "http://localhost:8001", "skills": [{"id": "pushed"}], "version": "1.0.0"}
)


@pytest.fixture
async def system(retinue_home: Path) -> AsyncIterator[System]:
    async with open_system(State(retinue_home)) as system:
        yield system


@requirement("P-04")
@requirement("P-19")
async def test_a_card_pushed_to_the_hub_by_oras_is_one_of_its_agents(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await system.start_hub()
    host = hub.url.removeprefix("http://")
    (tmp_path / "pushed_agent_card.json").write_bytes(CARD)
    monkeypatch.chdir(tmp_path)
    pusher = oras.client.OrasClient(insecure=True, auth_backend="basic")
    pusher.auth.set_basic_auth("anybody", system.state.local_token())
    files = ["pushed_agent_card.json:application/json"]
    await asyncio.to_thread(pusher.push, target=f"{host}/agents/pushed:v1", files=files)
    async with open_client(system.settings, system.state) as mesh:
        await mesh.get("refresh_agents")
        assert [row["name"] for row in (await mesh.get("list_agents"))["agents"]] == ["pushed-agent"]
        assert (await mesh.get("show_agent", {"name": "pushed-agent"}))["card"] == orjson.loads(CARD)
        # And forgotten through the same endpoint.
        async with HttpClient() as http:
            location = with_login(hub.url, "x", system.state.local_token())
            await open_registry(location, http).delete("agents/pushed", "v1")
        await mesh.get("refresh_agents")
        with pytest.raises(RemoteFaultError, match="pushed-agent") as caught:
            await mesh.get("show_agent", {"name": "pushed-agent"})
    assert caught.value.remote_type == UnknownAgentError.type


@requirement("P-17")
async def test_an_agent_is_carried_into_the_hub_by_skopeo_and_called_there(
    system: System, tmp_path: Path, retinue_home: Path
) -> None:
    hub = await system.start_hub()
    await system.start_agent(plan_agent())
    digest = await system.home.find_digest(Reference("agents/plan", "v1"))
    layout = f"oci:{retinue_home / 'registry' / 'agents' / 'plan'}:v1"
    there = f"docker://{hub.url.removeprefix('http://')}/agents/carried:v1"
    arguments = ["--insecure-policy", "copy", "--dest-tls-verify=false"]
    refused = await _skopeo(*arguments, layout, there)
    assert refused != 0
    creds = f"--dest-creds=x:{system.state.local_token()}"
    assert await _skopeo(*arguments, creds, layout, there) == 0
    assert await system.home.find_digest(Reference("agents/carried", "v1")) == digest
    async with open_client(system.settings, system.state) as mesh:
        assert await mesh.get("create_plan", {"requirements": "a test"}) == {"plan": PLAN}


@requirement("P-03")
async def test_our_own_commands_write_to_the_hub_of_their_state_without_a_login(
    system: System, tmp_path: Path
) -> None:
    hub = await system.start_hub()
    card = Card("pushed-agent", CARD, "1.0.0", ("pushed",))
    async with open_catalog(system.settings, system.state, hub.url) as catalog:
        await catalog.publish(card)
        assert await system.home.list_tags("agents/pushed") == ["v1"]
        assert await catalog.forget("pushed-agent") == ("agents/pushed", ("v1",))
    await system.start_agent(plan_agent())
    report = await mirror_registries(system.settings, system.state, hub.url, str(tmp_path / "copy"))
    assert [str(one) for one in report.copied] == ["agents/plan:v1"]
    # Another state's hub is a stranger: it does not get our token.
    other = State(tmp_path / "other")
    other.prepare()
    async with open_catalog(system.settings, other, hub.url) as catalog:
        with pytest.raises(RegistryLoginError):
            await catalog.publish(card)


async def _skopeo(*arguments: str) -> int:
    process = await asyncio.create_subprocess_exec(
        get_program("skopeo"),
        *arguments,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await asyncio.wait_for(process.wait(), 60)
