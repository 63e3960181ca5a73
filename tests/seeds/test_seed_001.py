"""Seed 001 over real sockets: cards in a registry, discovery, calls by JSON-RPC (exchanges 1-1 … 1-10)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oras.client  # type: ignore[import-untyped]
import orjson
import pytest
from a2a.client.card_resolver import parse_agent_card

import retinue
from retinue.core.errors import UnknownSkillError
from retinue.oci.registry import open_registry
from retinue.runtime.commands.client import open_client
from retinue.runtime.commands.publishing import open_catalog
from retinue.runtime.loading.publishables import Card, read_target
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.recording import Recording, relay_to
from tests.requirements import requirement
from tests.seeds.seed_001 import (
    BLOCKS,
    PLAN,
    list_blocks,
    list_cards,
    load_block,
    plan_agent,
    read_block,
    read_seeds,
)
from tests.services import docker_registry
from tests.serving import serve_app
from tests.system import System, Wire, open_system, publish

REPOSITORIES = {"agents/build", "agents/plan", "agents/test"}
URLS = {
    "create_plan": "http://localhost:8001",
    "generate_code": "http://localhost:8002",
    "review_code": "http://localhost:8003",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A registry that holds the seed's three cards, and what was asked of it."""

    url: str
    recording: Recording

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def paths(self, part: str = "") -> list[str]:
        return [one.path for one in self.recording.exchanges if part in one.path]


@pytest.fixture(scope="module")
def own_docker_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A docker-registry with nothing but the seed's agents in it."""
    with docker_registry(tmp_path_factory.mktemp("seed-001")) as url:
        yield url


@pytest.fixture(params=["hub", "docker-registry"])
async def endpoint(
    request: pytest.FixtureRequest, system: System, own_docker_registry: str
) -> AsyncIterator[Endpoint]:
    """The three agents published in the hub's own registry, and in another program's."""
    if request.param == "hub":
        for card in list_cards():
            await publish(system.home, card)
        hub = await system.start_hub()
        yield Endpoint(hub.url, system.recording)
        return
    async with HttpClient() as http, relay_to(own_docker_registry) as relay:
        for card in list_cards():
            await publish(open_registry(own_docker_registry, http), card)
        recording = Recording()
        async with serve_app(recording.before("registry", relay)) as url:
            yield Endpoint(url, recording)


def test_the_golden_files_are_the_blocks_of_the_seed() -> None:
    """The copies of this folder and the seed's text do not drift apart."""
    copies = [read_block(name) for name in BLOCKS]
    for seed in read_seeds():
        assert list_blocks(seed) == copies


@requirement("P-02")
@requirement("P-03")
async def test_the_catalog_lists_the_three_agents_page_by_page(endpoint: Endpoint, wire: Wire) -> None:
    """The pages follow ``n`` and ``last`` (exchange 1-1)."""
    reply = await wire.get(f"{endpoint.url}/v2/_catalog")
    assert reply.status == 200
    assert list(reply.json) == ["repositories"]
    assert set(reply.json["repositories"]) == REPOSITORIES
    pages: list[list[str]] = []
    path: str | None = "/v2/_catalog?n=2"
    while path is not None:
        page = await wire.get(endpoint.url + path)
        pages.append(page.json["repositories"])
        link = page.headers.get("link")
        path = None if link is None else link[link.index("<") + 1 : link.index(">")]
    assert pages == [["agents/build", "agents/plan"], ["agents/test"]]
    after = await wire.get(f"{endpoint.url}/v2/_catalog?n=5&last=agents/build")
    assert after.json == {"repositories": ["agents/plan", "agents/test"]}


@requirement("P-04")
@requirement("P-05")
@requirement("P-17")
async def test_oras_pulls_each_card_as_the_file_that_was_published(
    endpoint: Endpoint, wire: Wire, tmp_path: Path
) -> None:
    """The file name is the seed's, and its digest is the layer's (exchange 1-2)."""
    puller = oras.client.OrasClient(insecure=True)
    for short, card in zip(("plan", "build"), list_cards(), strict=False):
        folder = tmp_path / short
        files = await asyncio.to_thread(
            puller.pull, target=f"{endpoint.host}/agents/{short}:v1", outdir=str(folder)
        )
        file = folder / f"{short}_agent_card.json"
        assert files == [str(file)]
        assert file.read_bytes() == card
        accept = "application/vnd.oci.image.manifest.v1+json"
        manifest = await wire.get(f"{endpoint.url}/v2/agents/{short}/manifests/v1", accept=accept)
        (layer,) = manifest.json["layers"]
        assert layer["digest"] == "sha256:" + hashlib.sha256(card).hexdigest()
        assert layer["annotations"]["org.opencontainers.image.title"] == file.name


@requirement("P-01")
@requirement("P-06")
async def test_discover_agent_gives_the_url_of_the_card_and_nothing_else(endpoint: Endpoint) -> None:
    """The value is a str, exactly as authored (exchange 1-3)."""
    for skill, url in URLS.items():
        found = await asyncio.to_thread(retinue.discover_agent, skill, registries=[endpoint.url])
        assert found == url
        assert type(found) is str


@requirement("P-01")
async def test_a_second_look_up_reads_no_catalog_until_one_misses(endpoint: Endpoint) -> None:
    """The registry's log counts the requests (exchange 1-3)."""
    endpoint.recording.clear()
    async with retinue.open_directory([endpoint.url]) as directory:
        assert await directory.discover_agent("create_plan") == URLS["create_plan"]
        assert len(endpoint.paths("/v2/_catalog")) == 1
        endpoint.recording.clear()
        assert await directory.discover_agent("generate_code") == URLS["generate_code"]
        assert endpoint.paths() == []
        with pytest.raises(UnknownSkillError) as caught:
            await directory.discover_agent("create_plans")
        assert len(endpoint.paths("/v2/_catalog")) == 1
        assert caught.value.near == ("create_plan",)
        assert str(caught.value) == "Unknown skill: create_plans"


@requirement("P-01")
async def test_synchronous_look_ups_share_one_reading_of_the_catalog(endpoint: Endpoint) -> None:
    """A second look-up within the time to live sends no request, from another thread too."""
    await asyncio.to_thread(retinue.discover_agent, "create_plan", registries=[endpoint.url])
    endpoint.recording.clear()
    skills = ("create_plan", "generate_code", "review_code")
    urls = await asyncio.gather(
        *(asyncio.to_thread(retinue.discover_agent, skill, registries=[endpoint.url]) for skill in skills)
    )
    assert urls == [URLS[skill] for skill in skills]
    assert endpoint.paths() == []


async def test_an_open_directory_has_been_read(endpoint: Endpoint) -> None:
    async with retinue.open_directory([endpoint.url]) as directory:
        assert [entry.name for entry in directory.list_entries()] == [
            "build-agent",
            "plan-agent",
            "test-agent",
        ]


async def test_discover_agent_names_the_registry_that_could_not_be_asked(endpoint: Endpoint) -> None:
    """The error lists the registry (specification 7.2)."""
    dead = "http://127.0.0.1:9"
    with pytest.raises(UnknownSkillError) as caught:
        await asyncio.to_thread(retinue.discover_agent, "nobody_has_it", registries=[endpoint.url, dead])
    assert caught.value.unasked == (dead,)


@requirement("P-07")
@requirement("P-08")
@requirement("P-09")
@requirement("P-14")
async def test_the_request_of_the_seed_gets_the_response_of_the_seed(system: System, wire: Wire) -> None:
    """The body is verbatim; the reply has exactly the seed's keys, and no null (exchanges 1-4, 1-5)."""
    heard: list[Any] = []

    async def answer(params: Any) -> Any:
        heard.append(params)
        return {"plan": "..."}

    base = (await system.start_agent(plan_agent(answer))).url
    reply = await wire.post(f"{base}/execute", read_block("request"))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.json.items()) == list(load_block("response").items())
    assert heard == [load_block("request")["params"]]


async def test_the_request_of_the_diagram_has_no_id_and_is_answered_on_wish(
    retinue_home: Path, wire: Wire
) -> None:
    """It is a notification, unless a setting says otherwise (specification 7.2)."""
    body = {key: value for key, value in load_block("request").items() if key != "id"}
    for wish, reply in ((False, None), (True, {"jsonrpc": "2.0", "result": {"plan": PLAN}, "id": None})):
        async with open_system(State(retinue_home), execute={"answer_without_id": wish}) as system:
            base = (await system.start_agent(plan_agent())).url
            answer = await wire.post(f"{base}/execute", body)
        assert answer.status == (200 if wish else 204)
        assert (answer.json if wish else None) == reply


@requirement("P-23")
@pytest.mark.parametrize("code", [-32603, -32602])
async def test_the_code_of_invalid_parameters_is_a_setting(retinue_home: Path, wire: Wire, code: int) -> None:
    """The seed's −32603, or JSON-RPC's own −32602; the type is the same (specification 2, doubt 1)."""
    async with open_system(State(retinue_home), execute={"validation_code": code}) as system:
        agent = await system.start_agent(plan_agent())
        hub = await system.start_hub()
        for url in (agent.url, hub.url, f"{hub.url}/agents/plan-agent"):
            reply = await wire.call(url, "create_plan", {})
            assert reply.json["error"]["code"] == code
            assert reply.json["error"]["data"]["type"] == "validation_error"
            assert reply.json["error"]["data"]["jsonrpc_code"] == -32602


@requirement("P-10")
@requirement("P-20")
async def test_the_card_is_the_same_wherever_it_is_read(
    system: System, wire: Wire, tmp_path: Path, own_docker_registry: str
) -> None:
    """Published, served, pulled and shown: the key order is kept and nothing is added (exchange 1-6)."""
    card = _ordered(read_block("card"))
    file = tmp_path / "card.json"
    file.write_bytes(read_block("card"))
    target = read_target(str(file))
    assert isinstance(target, Card)
    hub = await system.start_hub()
    for location in (None, own_docker_registry):
        async with open_catalog(system.settings, system.state, location) as catalog:
            published = await catalog.publish(target)
            artifact = (await catalog.pull("agents/plan:v1")).artifact
            assert (published.repository, published.tag) == ("agents/plan", "v1")
            assert artifact.content == read_block("card")
    base = (await system.start_agent(plan_agent(), shown_url="http://localhost:8001")).url
    for url in (f"{base}/agent-card", f"{hub.url}/agents/plan-agent/agent-card"):
        reply = await wire.get(url)
        assert reply.status == 200
        assert reply.headers["content-type"] == "application/json"
        assert _ordered(reply.body) == card
    async with open_client(system.settings, system.state) as client:
        shown = await client.get("show_agent", {"name": "plan-agent"})
    assert _ordered(orjson.dumps(shown["card"])) == card


@requirement("P-20")
async def test_a_card_without_version_is_accepted(system: System, wire: Wire) -> None:
    """The served card has no version either (exchange 1-6)."""
    bare = {key: value for key, value in load_block("card").items() if key != "version"}
    await publish(system.home, orjson.dumps(bare))
    hub = await system.start_hub()
    assert (await wire.get(f"{hub.url}/agents/plan-agent/agent-card")).json == bare
    async with retinue.open_directory() as directory:
        assert await directory.discover_agent("create_plan") == "http://localhost:8001"


async def test_the_a2a_sdk_reads_the_card_of_the_seed_and_the_served_one(system: System, wire: Wire) -> None:
    """The SDK's own parser accepts both cards (exchange 1-6)."""
    seed = parse_agent_card(load_block("card"))
    assert (seed.name, seed.version, [skill.id for skill in seed.skills]) == (
        "plan-agent",
        "1.0.0",
        ["create_plan"],
    )
    base = (await system.start_agent(plan_agent())).url
    card = parse_agent_card((await wire.get(f"{base}/agent-card")).json)
    assert card.name == "plan-agent"
    assert [skill.id for skill in card.skills] == ["create_plan"]
    assert [interface.url for interface in card.supported_interfaces] == [base]


@requirement("P-11")
@requirement("P-22")
async def test_an_unknown_skill_is_the_error_of_the_seed(system: System, wire: Wire) -> None:
    """The status is 200, and the body is the seed's apart from ``data`` (exchange 1-8)."""
    base = (await system.start_agent(plan_agent())).url
    reply = await wire.call(base, "unknown_skill_id", {"requirements": "..."})
    assert reply.status == 200
    assert _without_data(reply.json) == load_block("unknown_skill")


@requirement("P-12")
@requirement("P-23")
async def test_a_missing_field_is_the_error_of_the_seed_and_nothing_runs(system: System, wire: Wire) -> None:
    """An unknown skill wins over bad parameters (exchange 1-9)."""
    ran: list[Any] = []

    async def answer(params: Any) -> Any:
        ran.append(params)
        return {"plan": PLAN}

    base = (await system.start_agent(plan_agent(answer))).url
    reply = await wire.call(base, "create_plan", {})
    assert reply.status == 200
    assert _without_data(reply.json) == load_block("validation_error")
    data = reply.error["data"]
    assert (data["type"], data["jsonrpc_code"]) == ("validation_error", -32602)
    assert data["errors"][0]["path"] == "requirements"
    assert (await wire.call(base, "unknown_skill_id", {})).error["code"] == -32601
    assert ran == []


@requirement("P-24")
@requirement("P-27")
async def test_a_failing_skill_is_the_error_of_the_seed(system: System, wire: Wire) -> None:
    """One line of reason, no traceback (exchange 1-10)."""

    async def answer(params: Any) -> Any:
        raise TimeoutError("Claude API timeout")

    base = (await system.start_agent(plan_agent(answer))).url
    reply = await wire.post(f"{base}/execute", read_block("request"))
    assert reply.status == 200
    assert _without_data(reply.json) == load_block("execution_error")
    assert reply.error["data"]["type"] == "execution_error"
    assert b"Traceback" not in reply.body


def _ordered(card: bytes) -> str:
    """JSON as text in the order of its keys, whatever its white space."""
    return orjson.dumps(orjson.loads(card)).decode()


def _without_data(reply: Any) -> Any:
    """The reply less ``error.data``, which the seed does not show; the order of its keys is checked."""
    assert list(reply) == ["jsonrpc", "error", "id"]
    kept = {key: value for key, value in reply["error"].items() if key != "data"}
    return {**reply, "error": kept}
