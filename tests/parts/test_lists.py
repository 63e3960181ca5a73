"""The lists of parts of each kind of process: they have an order, and nothing in them lacks what it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from retinue.authoring.agent import Agent
from retinue.parts.opening import in_order
from retinue.parts.part import Part
from retinue.parts.process import Kind, Process
from retinue.runtime.agent_core import open_agent
from retinue.runtime.agent_process import ServeOptions, agent_parts
from retinue.runtime.hub_process import HubOptions, hub_parts, open_hub
from retinue.runtime.launch import Start, tables_of
from retinue.runtime.loading.targets import Target
from retinue.runtime.observing.process_state import ProcessState
from retinue.runtime.serving import Stop
from retinue.runtime.stdio.agent import stdio_parts
from retinue.runtime.worker_process import open_worker, worker_parts
from retinue.settings import Settings, settings_class
from retinue.settings_tables import HubTable, PartsTable
from retinue.storage.state import State
from retinue_koi.table import KoiTable

NODE = "http://127.0.0.1:9/koi-net"
TARGET = Target(Agent("listed-agent", version="1.0.0"), ())

Core = Callable[[Start], AbstractAsyncContextManager[Process]]


def every_settings() -> Iterator[Settings]:
    """The settings that decide which parts a process has, in all combinations."""
    koi = [
        KoiTable(enabled=enabled, join=join, member_join=member)
        for enabled, join, member in product((False, True), (None, NODE), (None, NODE))
    ]
    for table, bare, off in product(koi, (False, True), ((), ("koi",))):
        yield settings_class()(koi=table, hub=HubTable(bare=bare), parts=PartsTable(off=off))


@dataclass(frozen=True, slots=True)
class ListOfParts:
    """The list of one kind of process, by the settings; ``core`` opens what its parts share."""

    kind: Kind
    parts_of: Callable[[Settings], Sequence[Part]]
    core: Core

    def list_wanted(self, settings: Settings) -> list[Part]:
        """The parts that the process opens."""
        tables = tables_of(settings)
        return [
            part
            for part in self.parts_of(settings)
            if self.kind in part.kinds and part.is_wanted(tables, self.kind)
        ]


LISTS = {
    "hub": ListOfParts("hub", partial(hub_parts, HubOptions()), open_hub),
    "bare hub": ListOfParts("hub", partial(hub_parts, HubOptions(bare=True)), open_hub),
    "agent": ListOfParts(
        "agent", partial(agent_parts, TARGET, ServeOptions()), partial(open_agent, "agent", TARGET, None)
    ),
    "agent without a card": ListOfParts(
        "agent",
        partial(agent_parts, TARGET, ServeOptions(publish=False)),
        partial(open_agent, "agent", TARGET, None),
    ),
    "worker": ListOfParts("worker", worker_parts, open_worker),
    "stdio": ListOfParts(
        "stdio", lambda settings: stdio_parts(TARGET), partial(open_agent, "stdio", TARGET, None)
    ),
}


@pytest.fixture(params=LISTS)
def parts(request: pytest.FixtureRequest) -> ListOfParts:
    return LISTS[request.param]


@asynccontextmanager
async def opened_core(core: Core, folder: Path) -> AsyncIterator[Process]:
    state, url = State(folder), "http://127.0.0.1:9000"
    state.prepare()
    async with core(Start(Settings(), state, lambda line: None, Stop(), url, url)) as process:
        yield process


def test_each_list_has_an_order_whatever_the_settings_want(parts: ListOfParts) -> None:
    for settings in every_settings():
        wanted = parts.list_wanted(settings)
        for order in (
            in_order(wanted, lambda part: part.needs),
            in_order(wanted, lambda part: part.runs_after),
            in_order(wanted, lambda part: part.ready_after),
        ):
            assert sorted(part.name for part in order) == sorted(part.name for part in wanted)


async def test_each_need_has_a_giver_in_the_core_or_in_the_list(
    parts: ListOfParts, retinue_home: Path
) -> None:
    async with opened_core(parts.core, retinue_home) as process:
        given_by_core = process.products.keys() | {ProcessState}
    for settings in every_settings():
        wanted = parts.list_wanted(settings)
        given = given_by_core | {part.gives for part in wanted}
        lacking = {part.name: needed for part in wanted for needed in part.needs if needed not in given}
        assert lacking == {}


def test_names_and_products_are_given_once(parts: ListOfParts) -> None:
    for settings in every_settings():
        wanted = parts.list_wanted(settings)
        names = [part.name for part in wanted]
        products = [part.gives for part in wanted if part.gives is not None]
        assert len({*names}) == len(names)
        assert len({*products}) == len(products)


def test_every_part_of_a_list_is_of_its_kind(parts: ListOfParts) -> None:
    for settings in every_settings():
        assert all(parts.kind in part.kinds for part in parts.parts_of(settings))


def test_the_parts_of_retinue_itself_are_required() -> None:
    listed = [part for entry in LISTS.values() for part in entry.parts_of(Settings())]
    assert {part.name for part in listed if not part.is_required} == set()


@pytest.mark.parametrize("kind", ["hub", "agent"])
def test_koi_is_a_part_of_who_is_on_a_network(kind: Kind) -> None:
    entry = LISTS[kind]
    wanted = {
        (table.enabled, table.join, table.member_join)
        for table in (
            tables_of(settings).get(KoiTable) for settings in every_settings() if not settings.parts.off
        )
        if "koi" in {part.name for part in entry.list_wanted(settings_class()(koi=table))}
    }
    every = set(product((False, True), (None, NODE), (None, NODE)))
    if kind == "hub":
        assert wanted == {one for one in every if one[0] or one[1]}
    else:
        assert wanted == {one for one in every if one[2]}


def test_a_part_that_is_switched_off_is_in_no_list(parts: ListOfParts) -> None:
    settings = settings_class()(koi=KoiTable(enabled=True, member_join=NODE), parts=PartsTable(off=("koi",)))
    assert "koi" not in {part.name for part in parts.parts_of(settings)}
