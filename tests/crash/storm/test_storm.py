"""Hubs, workers and agents are killed and frozen at random: nothing is lost, doubled, stuck or half undone.

``STORM_RUNS`` and ``STORM_SEED`` choose the number of runs and the dice of the long rows.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from retinue.core.errors import UnknownRunError
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_workflow
from retinue.storage.state import State
from retinue.workflows.runs.ports import Runs
from tests.crash.postgres import Postgres
from tests.crash.storm.processes import Disturber, Kept
from tests.crash.storm.proxy import Proxy
from tests.crash.storm.shop import AGENTS, BUNDLED, read_lines, write_agents
from tests.crash.storm.starter import Ordered, Starter, list_runs
from tests.crash.storm.verdict import Journal, Verdict, judge
from tests.crash.test_nodes import looking_at
from tests.ports import reserved_port
from tests.processes.running import run_apart
from tests.requirements import requirement
from tests.system import NOON

RUNS = int(os.environ.get("STORM_RUNS", "210"))
SEED = int(os.environ.get("STORM_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
LEASE_S = 4.0
ENDS_WITHIN_S = 900.0


@dataclass
class Mesh:
    """The processes of one storm; ``disturbed`` are those that may be killed and frozen."""

    folder: Path
    home: Path
    database: str
    urls: list[str] = field(default_factory=list)
    disturbed: list[Kept] = field(default_factory=list)
    proxies: list[Proxy] = field(default_factory=list)

    def token(self, url: str) -> str:
        home = self.home if url == self.urls[0] else self.folder / "home-2"
        return (home / "keys" / "local.token").read_text()


@contextmanager
def running_mesh(
    folder: Path, home: Path, postgres: Postgres | None, seed: int, *, proxied: bool
) -> Iterator[Mesh]:
    """One hub on SQLite, or two hubs and two workers on Postgres, over the three agents."""
    write_agents(folder)
    database = f"sqlite:///{home}/runs.db" if postgres is None else postgres.create_database()
    shared = {"RETINUE_RUNS__LEASE_S": str(LEASE_S)}
    if postgres is not None:
        shared["RETINUE_DATABASE"] = database
    mesh = Mesh(folder, home, database)
    with ExitStack() as stack:

        def keep(name: str, *arguments: str, ready: str, **more: str) -> Kept:
            kept = Kept(name, *arguments, ready=ready, folder=folder, environment={**shared, **more})
            stack.callback(kept.close)
            kept.start()
            mesh.disturbed.append(kept)
            return kept

        port = stack.enter_context(reserved_port())
        mesh.urls.append(f"http://127.0.0.1:{port}")
        state = State(home)
        state.prepare()
        asyncio.run(_store(state))
        first = keep("hub", "hub", "--bare", "--port", str(port), ready="hub at")
        first.wait_until_ready()
        if postgres is not None:
            _keep_others(mesh, stack, keep)
        for number, name in enumerate(AGENTS):
            own = stack.enter_context(reserved_port())
            options = ["serve", f"{name}.py", "--port", str(own), "--join", mesh.urls[0]]
            if proxied:
                proxy = Proxy(own, seed + number)
                stack.callback(proxy.close)
                mesh.proxies.append(proxy)
                options += ["--advertise", f"http://127.0.0.1:{proxy.port}"]
            keep(name, *options, ready="published").wait_until_ready()
        yield mesh


def _keep_others(mesh: Mesh, stack: ExitStack, keep: object) -> None:
    assert callable(keep)
    for number, kind in ((2, "hub"), (3, "worker"), (4, "worker")):
        port = stack.enter_context(reserved_port())
        token = run_apart("token", "new", "--join", "--name", f"storm-{number}", cwd=mesh.folder)
        assert token.returncode == 0, token.stderr
        options = [kind, *(["--bare"] if kind == "hub" else []), "--port", str(port), "--join", mesh.urls[0]]
        more = {"RETINUE_HOME": str(mesh.folder / f"home-{number}"), "RETINUE_JOIN": token.stdout.strip()}
        ready = "hub at" if kind == "hub" else "worker on"
        kept = keep(f"{kind}-{number}", *options, ready=ready, **more)
        kept.wait_until_ready()
        if kind == "hub":
            mesh.urls.append(f"http://127.0.0.1:{port}")


async def _store(state: State) -> None:
    content = orjson.dumps(BUNDLED)
    await publish_workflow(LayoutRegistry(state.registry), str(BUNDLED["name"]), content, created=NOON)


async def read_journals(runs: Runs, ordered: Sequence[Ordered], end_s: float) -> list[Journal]:
    """The journals of the runs when all have ended, or this many seconds later."""
    ends_at = time.monotonic() + end_s
    journals = []
    for each in ordered:
        try:
            async with asyncio.timeout(max(ends_at - time.monotonic(), 0.1)):
                record = await runs.finish(each.name)
        except TimeoutError:
            record = await runs.get(each.name)
        except UnknownRunError:
            journals.append(Journal(each, None))
            continue
        journals.append(
            Journal(each, record, await runs.list_events(each.name), await runs.list_steps(each.name))
        )
    return journals


async def weather(
    mesh: Mesh, ordered: Sequence[Ordered], seed: int, *, freeze_s: float, pace_s: float, start_s: float
) -> tuple[Verdict, Disturber]:
    """Start the runs, disturb the mesh until all are started and some have ended, and judge them."""
    starter = Starter(ordered, mesh.urls, mesh.token, start_s)
    disturber = Disturber(mesh.disturbed, seed, freeze_s=freeze_s, pace_s=pace_s)
    starter.start()
    disturber.start()
    try:
        await asyncio.to_thread(starter.join, ENDS_WITHIN_S)
        disturber.close()
        for proxy in mesh.proxies:
            proxy.is_calm = True
        async with looking_at(mesh.database, mesh.folder) as runs:
            journals = await read_journals(runs, ordered, ENDS_WITHIN_S)
    finally:
        disturber.close()
        starter.close()
    verdict = judge(journals, list(read_lines(mesh.folder)))
    return verdict, disturber


def render(name: str, seed: int, runs: int, verdict: Verdict, disturber: Disturber, mesh: Mesh) -> str:
    """The row of the table that a report takes."""
    cut = sum(count for proxy in mesh.proxies for fate, count in proxy.fates.items() if fate != "passed")
    found = (
        verdict.lost,
        verdict.repeated,
        verdict.doubled,
        verdict.stuck,
        verdict.half_undone,
        verdict.told,
        verdict.gave_up,
    )
    cells: list[object] = [name, seed, runs, disturber.done["kills"], disturber.done["freezes"], cut]
    cells += [verdict.effects, verdict.again, *(len(each) for each in found)]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


HEADER = (
    "| storm | seed | runs | kills | freezes | cut, delayed, swallowed | effects | begun again | lost "
    "| recorded and repeated | doubled | stuck | half undone | said incomplete | gave up |"
)


@requirement("P-31")
@pytest.mark.timeout(1200)
def test_twenty_runs_whose_hub_and_agents_are_killed_and_frozen_lose_and_double_nothing(
    tmp_path: Path, retinue_home: Path
) -> None:
    """The quick row: its dice are the same each time."""
    with running_mesh(tmp_path, retinue_home, None, 7, proxied=False) as mesh:
        ordered = list_runs(21)
        verdict, disturber = asyncio.run(weather(mesh, ordered, 7, freeze_s=4, pace_s=1.5, start_s=0.4))
        print(HEADER, render("quick", 7, len(ordered), verdict, disturber, mesh), sep="\n")
        assert verdict.problems == {}
        assert disturber.done["kills"] + disturber.done["freezes"] > 0


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxy"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_of_many_runs_in_a_storm_none_is_lost_doubled_stuck_or_half_undone(
    kind: str, proxied: bool, tmp_path: Path, retinue_home: Path, request: pytest.FixtureRequest
) -> None:
    server: Postgres | None = request.getfixturevalue("postgres") if kind == "postgres" else None
    print(f"STORM_SEED={SEED} STORM_RUNS={RUNS}")
    with running_mesh(tmp_path, retinue_home, server, SEED, proxied=proxied) as mesh:
        ordered = list_runs(RUNS)
        verdict, disturber = asyncio.run(weather(mesh, ordered, SEED, freeze_s=25, pace_s=2, start_s=0.5))
        name = f"{kind}, {'proxy' if proxied else 'direct'}"
        print(HEADER, render(name, SEED, len(ordered), verdict, disturber, mesh), sep="\n")
        print(*verdict.told, *verdict.gave_up, sep="\n")
        assert verdict.problems == {}
