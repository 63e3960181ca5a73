"""The moments of parts: their order, what stops a process, and what leaves it running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.testing import capture_logs

from retinue.authoring.agent import Agent
from retinue.cli.failures import describe
from retinue.core.call import LOCAL
from retinue.core.errors import InvalidSettingError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.observing.metrics import METRICS, Figures, Metric
from retinue.parts.opening import SLOW_S, OpenParts, in_order, open_parts
from retinue.parts.part import LivePart, Opened, Part, ReadinessProblem
from retinue.parts.process import Kind, Process, Tables
from tests.parts.noted import CLOSE, DRAIN, END, OPEN, READY, START, TOY, NotedPart, make_part, open_toy
from tests.support.memory_source import MemorySource


class Engine:
    """A product."""


class Wheels:
    """A product that needs an engine."""


class Roof:
    """A product that no part gives."""


@pytest.fixture
def lines() -> list[str]:
    """What the process prints."""
    return []


@pytest.fixture
async def process(retinue_home: Path, lines: list[str]) -> AsyncIterator[Process]:
    async with open_toy(retinue_home, lines.append) as process:
        yield process


async def live(process: Process, parts: Sequence[Part]) -> list[ReadinessProblem]:
    """Take the parts through all moments; the problems of the process when it was ready."""
    async with open_parts(process, parts) as opened, opened.running():
        await opened.get_ready()
        return await opened.find_problems()


async def test_parts_open_start_and_get_ready_in_three_orders_and_end_in_reverse(process: Process) -> None:
    notes: list[str] = []
    parts = [
        make_part("driver", notes, needs=(Wheels, Engine)),
        make_part("wheels", notes, needs=(Engine,), gives=Wheels, ready_after=(Roof,)),
        make_part("radio", notes),
        make_part("engine", notes, gives=Engine, runs_after=(Wheels,), ready_after=(Wheels,)),
    ]
    assert await live(process, parts) == []
    assert notes == [
        *("engine: open", "wheels: open", "driver: open", "radio: open"),
        *("wheels: start", "engine: start", "driver: start", "radio: start"),
        *("wheels: get ready", "engine: get ready", "driver: get ready", "radio: get ready"),
        *("radio: end", "driver: end", "engine: end", "wheels: end"),
        *("radio: drain", "driver: drain", "wheels: drain", "engine: drain"),
        *("radio: close", "driver: close", "wheels: close", "engine: close"),
    ]


async def test_a_product_is_found_by_its_class_by_parts_that_open_later(process: Process) -> None:
    notes: list[str] = []
    engine = make_part("engine", notes, gives=Engine)
    found: list[object] = []

    class Driver(NotedPart):
        name = "driver"
        needs = (Engine,)

        def open(self, process: Process) -> AbstractAsyncContextManager[Opened]:
            found.extend([process.get(Engine), process.find(Roof)])
            return super().open(process)

    async with open_parts(process, [Driver(notes), engine]):
        assert found == [engine, None]
    with pytest.raises(KeyError):
        process.get(Roof)


def test_parts_without_needs_keep_the_order_of_their_list() -> None:
    parts = [make_part(name, []) for name in ("c", "a", "b")]
    assert in_order(parts, lambda part: part.needs) == parts


EDGES = pytest.mark.parametrize("edges", ["needs", "runs_after", "ready_after"])


def make_circle(notes: list[str], edges: str, required: Sequence[str]) -> list[Part]:
    """A part that waits for two parts that wait for each other, and a part that waits for none."""

    def make(name: str, **attributes: object) -> Part:
        return make_part(name, notes, is_required=name in required, **attributes)

    return [
        make("radio"),
        make("driver", **{edges: (Wheels,)}),
        make("wheels", gives=Wheels, **{edges: (Engine,)}),
        make("engine", gives=Engine, **{edges: (Wheels,)}),
    ]


@EDGES
async def test_required_parts_that_wait_for_each_other_stop_the_process(process: Process, edges: str) -> None:
    notes: list[str] = []
    with pytest.raises(InvalidSettingError) as caught:
        await live(process, make_circle(notes, edges, ["wheels", "engine"]))
    assert caught.value.message == "part wheels: parts wait for each other: wheels → engine → wheels"
    assert caught.value.remedy == "uninstall one of them, or switch it off: [parts] off"
    assert notes == []


@EDGES
async def test_other_parts_that_wait_for_each_other_are_left_out(
    process: Process, lines: list[str], edges: str
) -> None:
    notes: list[str] = []
    problems = await live(process, make_circle(notes, edges, []))
    left_out = ["wheels", "engine", "driver"] if edges == "needs" else ["wheels", "engine"]
    assert [problem.name for problem in problems] == left_out
    for problem in problems[:2]:
        assert (problem.what, problem.is_fatal) == ("part", False)
        assert "parts wait for each other: wheels → engine → wheels" in problem.reason
    assert lines == [f"{problem.name} is not available: {problem.reason}" for problem in problems]
    assert {note.partition(":")[0] for note in notes} == {"radio", "driver"} - {*left_out}


async def test_a_required_part_loses_a_part_that_waits_for_it_too(process: Process) -> None:
    notes: list[str] = []
    (problem,) = await live(process, make_circle(notes, "runs_after", ["wheels"]))
    assert problem.name == "engine"
    assert {note.partition(":")[0] for note in notes} == {"radio", "driver", "wheels"}


async def test_a_required_part_that_needs_a_part_of_a_circle_stops_the_process(process: Process) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        await live(process, make_circle([], "needs", ["wheels"]))
    assert caught.value.message == "part wheels: it needs Engine, which no part of this process gives"


async def test_a_required_part_without_what_it_needs_stops_the_process(process: Process) -> None:
    notes: list[str] = []
    parts = [make_part("radio", notes), make_part("driver", notes, needs=(Roof,), is_required=True)]
    with pytest.raises(InvalidSettingError) as caught:
        await live(process, parts)
    assert caught.value.field == "part driver"
    assert "it needs Roof, which no part of this process gives" in caught.value.message
    assert caught.value.remedy == "install what gives it, or switch the part off: [parts] off"
    assert notes == ["radio: open", "radio: close"]


async def test_another_part_without_what_it_needs_is_left_out(process: Process, lines: list[str]) -> None:
    notes: list[str] = []
    parts = [make_part("driver", notes, needs=(Roof,)), make_part("radio", notes)]
    with capture_logs() as logged:
        (problem,) = await live(process, parts)
    (warning,) = [entry for entry in logged if entry["event"] == "part not opened"]
    assert "it needs Roof" in warning["reason"]
    assert "exc_info" not in warning
    assert (problem.what, problem.name, problem.is_fatal) == ("part", "driver", False)
    assert "it needs Roof" in problem.reason
    assert lines == [f"driver is not available: {problem.reason}"]
    assert "radio: get ready" in notes


async def test_what_needs_a_part_that_could_not_open_is_left_out_with_it(process: Process) -> None:
    notes: list[str] = []
    parts = [
        make_part("engine", notes, gives=Engine, failing=OPEN),
        make_part("driver", notes, needs=(Engine,)),
        make_part("radio", notes),
    ]
    assert [problem.name for problem in await live(process, parts)] == ["engine", "driver"]
    assert {note.partition(":")[0] for note in notes} == {"radio"}


DRAINED_AND_CLOSED = [
    *("radio: drain", "driver: drain", "engine: drain"),
    *("radio: close", "driver: close", "engine: close"),
]


@pytest.mark.parametrize(
    ("moment", "noted"),
    [
        (OPEN, ["engine: open", "engine: close"]),
        (START, ["engine: start", "engine: end", *DRAINED_AND_CLOSED]),
        (READY, ["engine: get ready", "radio: end", "driver: end", "engine: end", *DRAINED_AND_CLOSED]),
    ],
)
async def test_a_required_part_that_fails_stops_the_process_and_what_was_open_ends(
    process: Process, lines: list[str], moment: str, noted: list[str]
) -> None:
    notes: list[str] = []
    parts = [
        make_part("engine", notes),
        make_part("driver", notes, failing=moment, is_required=True),
        make_part("radio", notes),
    ]
    with pytest.raises(InvalidSettingError, match="it is broken"):
        await live(process, parts)
    assert notes[-len(noted) :] == noted
    assert f"driver: {moment}" not in notes
    assert lines == []


@pytest.mark.parametrize("moment", [OPEN, START, READY])
async def test_another_part_that_fails_leaves_the_process_running_with_a_problem_and_a_line(
    process: Process, lines: list[str], moment: str
) -> None:
    notes: list[str] = []
    parts = [
        make_part("engine", notes),
        make_part("driver", notes, failing=moment),
        make_part("radio", notes),
    ]
    (problem,) = await live(process, parts)
    assert (problem.what, problem.name, problem.is_fatal) == ("part", "driver", False)
    assert problem.reason.endswith("it is broken — mend it")
    assert lines == [f"driver is not available: {problem.reason}"]
    for name in ("engine", "radio"):
        own = [note for note in notes if note.startswith(name)]
        assert own == [f"{name}: {step}" for step in (OPEN, START, READY, "end", "drain", "close")]


class AgentsPart(Part):
    """Gives a source of agents and its invoker, and two skills to the agent of the process."""

    name = "agents-of-others"
    kinds = frozenset({TOY})
    gives = Wheels

    def __init__(self, source: str, skill: str, notes: list[str]) -> None:
        self._source = source
        self._skill = skill
        self._notes = notes

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        def add_skills(agent: Agent) -> None:
            agent.declare(Skill("drive", "Drives."))
            agent.declare(Skill(self._skill, "Brakes."))

        try:
            yield Opened(
                product=Wheels(),
                sources=(MemorySource("garage"), MemorySource(self._source)),
                invokers={"garage": process.remote},
                protocols={"tow": process.remote},
                skills=add_skills,
                metrics={"toy_wheels": Metric("gauge", "Wheels.")},
            )
        finally:
            self._notes.append("closed")


@pytest.mark.parametrize(
    ("source", "skill", "reason"),
    [
        ("home", "brake", "two sources of agents have this name"),
        ("garage", "brake", "two sources of agents have this name"),
        ("street", "drive", "toy-agent has it already"),
    ],
)
async def test_a_part_of_which_something_cannot_be_taken_gives_nothing_and_closes_at_once(
    process: Process, lines: list[str], source: str, skill: str, reason: str
) -> None:
    notes: list[str] = []
    directory = Directory(MemoryListings(), [MemorySource("home")])
    process.add(Directory, directory)
    elsewhere = Listing(record=AgentRecord("car"), source="garage", key="car")
    async with open_parts(process, [AgentsPart(source, skill, notes)]) as opened:
        assert notes == ["closed"]
        assert process.invokers.is_peer(elsewhere)
        assert len(directory.sources) == 1
        assert process.agent.skills == ()
        assert process.find(Wheels) is None
        assert opened.metrics == METRICS
        (problem,) = await opened.find_problems()
    assert reason in problem.reason
    assert lines == [f"agents-of-others is not available: {problem.reason}"]
    assert notes == ["closed"]
    await directory.aclose()


async def test_a_part_that_opened_whole_closes_with_the_process(process: Process) -> None:
    notes: list[str] = []
    directory = Directory(MemoryListings(), [MemorySource("home")])
    process.add(Directory, directory)
    elsewhere = Listing(record=AgentRecord("car"), source="garage", key="car")
    async with open_parts(process, [AgentsPart("street", "brake", notes)]):
        assert notes == []
        assert "garage" in directory.sources
        assert "street" in directory.sources
        assert not process.invokers.is_peer(elsewhere)
        assert [skill.id for skill in process.agent.skills] == ["drive", "brake"]
        assert process.find(Wheels) is not None
    assert notes == ["closed"]
    await directory.aclose()


@pytest.mark.parametrize("moment", [END, DRAIN, CLOSE])
async def test_the_others_end_although_one_does_not_end_well(process: Process, moment: str) -> None:
    notes: list[str] = []
    parts = [
        make_part("engine", notes),
        make_part("driver", notes, failing=moment),
        make_part("radio", notes),
    ]
    assert await live(process, parts) == []
    for name in ("engine", "driver", "radio"):
        assert [note for note in notes if note.startswith(name)][-3:] == [
            f"{name}: {step}" for step in (END, DRAIN, CLOSE)
        ]


async def test_a_required_part_that_does_not_end_well_is_an_error(process: Process) -> None:
    with pytest.raises(InvalidSettingError, match="it is broken"):
        await live(process, [make_part("driver", [], failing=CLOSE, is_required=True)])


class ClosingPart(Part):
    """Notes its end behind its ``yield``."""

    name = "closing"
    kinds = frozenset({TOY})

    def __init__(self) -> None:
        self.is_closed = False

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        yield Opened()
        self.is_closed = True


async def test_a_part_closes_what_it_made_after_its_yield_although_another_fails(process: Process) -> None:
    closing = ClosingPart()
    with pytest.raises(InvalidSettingError, match="it is broken"):
        await live(process, [closing, make_part("driver", [], failing=OPEN, is_required=True)])
    assert closing.is_closed


class UnsurePart(Part):
    """Cannot say whether a process has it."""

    name = "unsure"
    kinds = frozenset({TOY})

    def is_wanted(self, tables: Tables, kind: Kind) -> bool:
        return {TOY: True}["no such kind"]

    def open(self, process: Process) -> AbstractAsyncContextManager[Opened]:
        raise AssertionError("it is not opened")


async def test_a_part_that_cannot_say_whether_it_is_wanted_is_left_out(process: Process) -> None:
    (problem,) = await live(process, [UnsurePart()])
    assert (problem.name, problem.reason) == ("unsure", "KeyError: 'no such kind'")


async def test_an_unexpected_error_of_a_required_part_names_the_part(process: Process) -> None:
    required = type("required", (UnsurePart,), {"is_required": True})()
    with pytest.raises(KeyError) as caught:
        await live(process, [required])
    assert describe(caught.value).message == "unexpected KeyError in part unsure: 'no such kind'"


async def test_parts_of_other_kinds_and_unwanted_ones_are_not_opened(process: Process) -> None:
    notes: list[str] = []

    class Unwanted(NotedPart):
        name = "unwanted"
        gives = Engine

        def is_wanted(self, tables: Tables, kind: Kind) -> bool:
            return kind != TOY

    parts = [
        Unwanted(notes),
        make_part("of-hubs", notes, kinds=frozenset({"hub"})),
        make_part("radio", notes, runs_after=(Engine,)),
    ]
    assert await live(process, parts) == []
    assert {note.partition(":")[0] for note in notes} == {"radio"}


class WaitingPart(Part):
    """Opens, or starts, when the process has printed a line."""

    name = "waiting"
    kinds = frozenset({TOY})

    def __init__(self, moment: str, printed: asyncio.Event) -> None:
        self._moment = moment
        self._printed = printed

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            await self._wait(START)
            yield

        await self._wait(OPEN)
        yield Opened(running=running)

    async def _wait(self, moment: str) -> None:
        if moment == self._moment:
            async with asyncio.timeout(60):
                await self._printed.wait()


@pytest.mark.parametrize("moment", [OPEN, START])
async def test_a_part_that_takes_long_is_named(process: Process, lines: list[str], moment: str) -> None:
    printed = asyncio.Event()

    def echo(line: str) -> None:
        lines.append(line)
        printed.set()

    process.echo = echo
    parts = [make_part("quick", []), WaitingPart(moment, printed)]
    async with open_parts(process, parts, slow_s=0.01) as opened, opened.running():
        assert lines == [f"waiting takes more than 0.01 s to {moment}"]
    assert SLOW_S == 10.0


# What parts give


async def answer(request: Request) -> Response:
    return Response(request.url.path)


class GivingPart(Part):
    """Gives something of everything that a process collects."""

    kinds = frozenset({TOY})

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        name = self.name

        async def figures(figures: Figures) -> None:
            figures.put(f"toy_{name}", self.rank)

        async def problems() -> Sequence[ReadinessProblem]:
            return [ReadinessProblem("upstream", name, "down", is_fatal=False)]

        yield Opened(
            routes=(Route(f"/{name}", answer),),
            metrics={f"toy_{name}": Metric("gauge", "The rank of a part.")},
            figures=figures,
            problems=problems,
            live=(LivePart((f"{name}.*",), lambda tables: lambda: None),),
            open_paths=frozenset({f"/{name}"}),
            open_prefixes=(f"/{name}/open/",),
            any_media_type=(f"/{name}/files/",),
            tokens={f"token-of-{name}": LOCAL},
        )


def giving(name: str, rank: int) -> Part:
    part: Part = type(name, (GivingPart,), {"name": name, "rank": rank})()
    return part


@pytest.fixture
async def opened(process: Process) -> AsyncIterator[OpenParts]:
    parts = [giving("last", 900), giving("second", 20), giving("third", 20), giving("first", 10)]
    async with open_parts(process, parts) as opened:
        yield opened


async def test_routes_stand_in_the_order_of_their_ranks_and_then_of_the_list(opened: OpenParts) -> None:
    routes: list[Any] = opened.list_routes()
    assert [route.path for route in routes] == ["/first", "/second", "/third", "/last"]


async def test_what_parts_give_is_collected(opened: OpenParts) -> None:
    names = ["last", "second", "third", "first"]
    assert opened.list_tokens() == {f"token-of-{name}": LOCAL for name in names}
    exceptions = opened.list_path_exceptions()
    assert exceptions.open_paths == {f"/{name}" for name in names}
    assert exceptions.open_prefixes == tuple(f"/{name}/open/" for name in names)
    assert exceptions.any_media_type == tuple(f"/{name}/files/" for name in names)
    assert [live.names for live in opened.list_live()] == [(f"{name}.*",) for name in names]
    assert [problem.name for problem in await opened.find_problems()] == names
    assert opened.metrics.keys() == METRICS.keys() | {f"toy_{name}" for name in names}
    figures = Figures(opened.metrics)
    await opened.read_figures(figures)
    assert figures.values["toy_first"] == {(): 10}
