"""Imports of teams: each digest runs its own, a chain calls that of its digest, and teams share names."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from retinue.core.call import ANONYMOUS, Call, TraceContext, TraceExtension
from retinue.core.errors import InvalidSettingError, NotAuthenticatedError, UnknownAgentError
from retinue.mcp.upstream.imports.reads import ServersInHub
from retinue.mesh.admission import Admission
from retinue.mesh.channel import NullChannel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.rollouts import CHOSEN, Rollouts, mark_of
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.reading import ReadRequest
from retinue.runtime.commands.imports import remove_import
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.imports.connections import Imports
from retinue.runtime.imports.files import find_members, list_waiting, read_imports
from retinue.runtime.teams.programs import CONFIG
from retinue.runtime.teams.rollout import Stage, StoredRollout, list_rollouts
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.team.package import Team
from retinue.web.http_client import HttpClient
from tests.openapi.test_trust import Server
from tests.team.conftest import WriteTeam

WAIT_S = 60.0
ROOT = Path(__file__).resolve().parents[2]
LOCK = "locks/told/pylock.toml"


@dataclass
class Hub:
    """The imports of the teams of a state, and the calls that choose among them."""

    state: State
    directory: Directory
    dispatcher: Dispatcher
    rollouts: Rollouts
    imports: Imports
    log: Path

    def follow(self) -> None:
        """Let calls follow the rows, as the part of rollouts does."""
        stored = list_rollouts(self.state)
        calls = [rollout.for_calls(team) for team, rollout in stored.items()]
        self.rollouts.configure(calls, list(self.directory.list_held()))

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_true():
                await asyncio.sleep(0.01)

    def list_healthy(self, name: str = "told") -> list[str]:
        return sorted(str(one.tag) for one in self.directory.list_named(name) if one.health == "healthy")

    async def tell(self, agent: str | None = "told", chosen: Team | None = None) -> str:
        """What answers a call: the version and the process."""
        trace = TraceContext(id="7", trusted=True, depth=1 if chosen else 0)
        if chosen is not None:
            others = {CHOSEN: {chosen.name: mark_of(chosen.digest)}}
            trace = trace.with_extension(TraceExtension(None, others))
        call = Call("1", "tell", {}, ANONYMOUS, "execute", trace, agent)
        return str((await self.dispatcher.dispatch(call)).get())

    def read_log(self) -> list[str]:
        return sorted(self.log.read_text().splitlines()) if self.log.exists() else []


@pytest.fixture
async def hub(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    log = tmp_path / "log"

    def command(*_: object) -> Sequence[str]:
        begin = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[1:] = [{str(log)!r}]"
        run = "runpy.run_module('tests.team.import_server', run_name='__main__', alter_sys=True)"
        return sys.executable, "-c", f"{begin}; {run}"

    monkeypatch.setattr("retinue.runtime.teams.programs.import_command", command)
    monkeypatch.setattr("retinue.runtime.imports.connections.LOOK_S", 0.02)
    imports = Imports(Settings(), state)
    directory = Directory(MemoryListings(), imports.sources)
    rollouts = Rollouts(directory.set_enabled)
    directory.subscribe(rollouts.note)
    dispatcher = Dispatcher(
        "retinue", directory, lambda listing: imports.invokers[listing.source], Admission(), rollouts=rollouts
    )
    async with HttpClient() as http, imports.running(directory, http):
        yield Hub(state, directory, dispatcher, rollouts, imports, log)
    await directory.aclose()


@pytest.fixture
def install(teams: TeamCommands, state: State, write_team: WriteTeam) -> Callable[..., object]:
    async def pack(version: str, *, name: str = "words", tool: str = "") -> Team:
        env = f'{{ VERSION = "{name} {version}", TOOL = "{tool}" }}'
        more = f'[imports.told]\npypi = "told==1.0.0"\nenv = {env}\n'
        tools = [{"id": tool} for tool in ("tell", *filter(None, [tool]))]
        folder = write_team(version, name=name, more=more)
        (folder / LOCK).parent.mkdir(parents=True)
        (folder / LOCK).write_bytes(b"")
        write_team(version, name=name, more=more, imports={"told": {"lock": LOCK, "tools": tools}})
        team = (await teams.pack(folder, registry=None, output=None)).team
        pulled = await teams.pull(team.digest)
        config = await pulled.source.pull_blob(pulled.repository, pulled.manifest.config)
        TeamStore(state).install(team.name, team.digest, {CONFIG: config, f"files/{LOCK}": b""})
        return team

    return pack


def serve(
    state: State, team: Team, stage: Stage | None = None, new: Team | None = None, step: int = 0
) -> None:
    """Write the row of a team that serves, with the rollout of another digest where there is one."""
    rollout: dict[str, object] = {}
    if stage is not None and new is not None:
        steps = (50, 100)
        stored = StoredRollout(team.digest, new.digest, new.version, steps, 0.0, 60.0, stage=stage, step=step)
        rollout = stored.as_json()
    TeamStore(state).write_row(TeamRow(team.name, team.digest, team.version, rollout=rollout))


Install = Callable[..., "asyncio.Future[Team]"]


async def test_each_digest_runs_its_own_import_and_a_chain_calls_that_of_its_digest(
    hub: Hub, install: Install, state: State
) -> None:
    old, new = await install("1.0.0"), await install("1.1.0")
    serve(state, old)
    hub.follow()
    await hub.until(lambda: len(hub.list_healthy()) == 1)
    before = await hub.tell()
    assert before.startswith("words 1.0.0 ")

    serve(state, old, "start", new)
    hub.follow()
    await hub.until(lambda: len(hub.list_healthy()) == 2)
    shown = [entry.version for entry in hub.directory.list_named("told") if entry.enabled]
    assert shown == ["words 1.0.0"], "lists do not show what is checked"
    assert {await hub.tell(agent) for agent in ("told", "told@words", None)} == {before}
    assert (await hub.tell(chosen=new)).startswith("words 1.1.0 "), "the check"

    serve(state, old, "serve", new, step=1)
    hub.follow()
    after = await hub.tell()
    assert after.startswith("words 1.1.0 ")
    for chosen, answer in ((old, before), (new, after)):
        assert await hub.tell(chosen=chosen) == answer
        assert await hub.tell("told@words", chosen=chosen) == answer
        assert await hub.tell(None, chosen=chosen) == answer

    serve(state, new)
    hub.rollouts.configure([], [])
    await hub.until(lambda: hub.read_log() == ["began words 1.0.0", "began words 1.1.0", "ended words 1.0.0"])
    await hub.until(lambda: len(hub.directory.list_named("told")) == 1)
    assert await hub.tell() == after, "the program of the new digest was not started again"


async def test_a_read_in_a_chain_is_one_at_the_import_of_its_digest(
    hub: Hub, install: Install, state: State
) -> None:
    old, new = await install("1.0.0"), await install("1.1.0")
    serve(state, old, "serve", new, step=1)
    hub.follow()
    await hub.until(lambda: len(hub.list_healthy()) == 2)
    reads = ServersInHub(hub.imports.servers, hub.directory, hub.dispatcher)
    ((name, shown),) = reads.list_all()
    assert name == "told"
    for team in (new, old):
        others = {CHOSEN: {"words": mark_of(team.digest)}}
        trace = TraceContext(id=team.version, trusted=True, depth=1).with_extension(
            TraceExtension(None, others)
        )
        call = Call(team.version, "", {}, ANONYMOUS, "mcp", trace, "told")
        request = ReadRequest(team.version, "resource", "note://who", ANONYMOUS, "mcp", trace)
        admitted = hub.dispatcher.admission.enter(call, "told")
        parts = await reads.read(shown, request, call, admitted, NullChannel())
        hub.dispatcher.admission.leave(admitted)
        assert f"words {team.version}" in str(parts)


async def test_an_import_that_dies_is_served_by_that_of_the_other_digest(
    hub: Hub, install: Install, state: State
) -> None:
    old, new = await install("1.0.0"), await install("1.1.0")
    serve(state, old, "serve", new, step=1)
    hub.follow()
    await hub.until(lambda: len(hub.list_healthy()) == 2)
    process = int((await hub.tell()).rpartition(" ")[2])
    os.kill(process, signal.SIGKILL)
    assert (await hub.tell(chosen=old)).startswith("words 1.0.0 ")


async def test_two_teams_have_an_import_of_one_name(hub: Hub, install: Install, state: State) -> None:
    for name in ("news", "words"):
        serve(state, await install("1.0.0", name=name, tool=f"of_{name}"))
    await hub.until(lambda: len(hub.list_healthy()) == 2)
    for name in ("news", "words"):
        assert (await hub.tell(f"told@{name}")).startswith(f"{name} 1.0.0 ")
    with pytest.raises(UnknownAgentError) as caught:
        await hub.tell("told")
    assert sorted(caught.value.near) == ["told@news", "told@words"]
    assert sorted(read_imports(Settings(), state)) == ["told@news", "told@words"]
    assert sorted(one.name for one in hub.imports.list_imports()) == ["told@news", "told@words"]
    with pytest.raises(InvalidSettingError, match="an import of the team news"):
        remove_import(Settings(), state, "told@news")
    TeamStore(state).write_row(TeamRow("news", None))
    await hub.until(lambda: len(hub.directory.list_named("told")) == 1)
    assert (await hub.tell("told")).startswith("words 1.0.0 ")
    assert list(read_imports(Settings(), state)) == ["told"]


async def test_tools_are_accepted_for_each_digest_because_its_lock_names_them(
    hub: Hub, install: Install, state: State
) -> None:
    old, new = await install("1.0.0"), await install("1.1.0", tool="other")
    serve(state, old, "serve", new, step=1)
    hub.follow()
    await hub.until(lambda: len(hub.list_healthy()) == 2)
    skills = {entry.version: [*entry.skills] for entry in hub.directory.list_named("told")}
    assert skills == {"words 1.0.0": ["tell"], "words 1.1.0": ["tell", "other"]}
    assert list_waiting(Settings(), state) == {"told": []}
    assert [member.tag for member in find_members(Settings(), state, "told@words")] == [
        f"v{team.version}-team-{mark_of(team.digest)}" for team in (new, old)
    ]


SHOP: dict[str, object] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "security": [{"key": []}],
    "paths": {"/own": {"get": {"operationId": "own", "responses": {"200": {"description": "x"}}}}},
    "components": {"securitySchemes": {"key": {"type": "apiKey", "name": "X-Key", "in": "header"}}},
}


@pytest.mark.parametrize(
    "env", ["", 'env = { SHOP_KEY = "${SHOP_SECRET}" }\n[secrets]\nSHOP_SECRET = "key"\n']
)
async def test_an_api_of_a_team_gets_keys_of_the_team_and_none_of_the_hub(
    env: str,
    hub: Hub,
    teams: TeamCommands,
    state: State,
    write_team: WriteTeam,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_KEY", "key of the hub")
    server = Server()
    async with server.serve() as url:
        path = "documents/shop.json"
        folder = write_team()
        (folder / path).parent.mkdir()
        (folder / path).write_bytes(orjson.dumps({**SHOP, "servers": [{"url": url}]}))
        more = f'[imports.shop]\nopenapi = "{path}"\n{env}'
        packed = await teams.pack(write_team(more=more, imports={"shop": {}}), registry=None, output=None)
        pulled = await teams.pull(packed.team.digest)
        config = await pulled.source.pull_blob(pulled.repository, pulled.manifest.config)
        store, content = TeamStore(state), (folder / path).read_bytes()
        store.install("words", packed.team.digest, {CONFIG: config, f"files/{path}": content})
        kept = store.keep_secrets("words", {"SHOP_SECRET": "key of $team"})
        secrets = {packed.team.digest: kept}
        store.write_row(TeamRow("words", packed.team.digest, packed.team.version, secrets=secrets))
        await hub.until(lambda: len(hub.list_healthy("shop")) == 1)
        call = Call("1", "own", {}, ANONYMOUS, "execute", TraceContext(id="7", trusted=True), "shop")
        outcome = await hub.dispatcher.dispatch(call)
    if env:
        assert server.keys == {"/own": "key of $team"}
    else:
        assert isinstance(outcome.error, NotAuthenticatedError)
        assert server.keys == {}
