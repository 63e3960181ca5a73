"""Imported MCP servers: real servers of the SDK, as programs and over HTTP, behind the dispatch path."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import LOCAL, Call, Outcome, new_id
from retinue.core.errors import AgentUnreachableError, CallTimedOutError, ExecutionFailedError
from retinue.core.record import Health, Listing
from retinue.mcp.stdio.server_program import ServerProgram
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports.server import INSTRUCTIONS, ImportSpec
from retinue.mcp.upstream.imports.servers import ImportedServers
from retinue.mcp.upstream.transport import Transport
from retinue.mesh.channel import Capability, LogLevel, NullChannel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import new_trace
from retinue.mesh.pins import Document, Pins, describe_change
from retinue.web.http_client import HttpClient
from tests.mcp.upstream.foreign_server import make_server
from tests.serving import serve_app

pytestmark = [
    pytest.mark.timeout(60),
    # the SDK's remark that sampling and log lines are of the past
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
WAIT_S = 60.0


class Person(NullChannel):
    """A channel with a person, and her model, who answers every question with her name."""

    def __init__(self, name: str = "Ada") -> None:
        self.name = name
        self.said: list[str] = []

    capabilities: frozenset[Capability] = frozenset({"progress", "log", "elicitation", "sampling"})

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        self.said.append(f"{level}: {message}")

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        self.said.append(prompt)
        return f"{self.name} thinks"

    async def progress(self, fraction: float | None, message: str = "") -> None:
        self.said.append(message)

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        self.said.append(message)
        await asyncio.sleep(0.01)  # a person takes longer than a program
        return {"name": self.name}


class Imports:
    """Imported servers in a directory, called through a dispatcher."""

    def __init__(self, servers: ImportedServers, directory: Directory) -> None:
        self.servers = servers
        self.directory = directory
        self.dispatcher = Dispatcher(agent="hub", lookup=directory, invoker_of=lambda _: servers)
        self._changed = asyncio.Event()

        def note(listing: Listing, health: Health, reason: str) -> None:
            directory.upsert(listing)
            directory.record_health(listing, health, reason)
            self._changed.set()

        servers.subscribe(note)

    async def until(self, name: str, fits: Callable[[Listing], bool]) -> Listing:
        async with asyncio.timeout(WAIT_S):
            while True:
                self._changed.clear()
                found = self.directory.find(name)
                if found is not None and fits(found):
                    return found
                await self._changed.wait()

    async def call(
        self,
        skill: str,
        arguments: Any = None,
        channel: NullChannel | None = None,
        *,
        within_s: float = WAIT_S,
        trace_id: str | None = None,
    ) -> Outcome:
        deadline = asyncio.get_running_loop().time() + within_s
        call = Call(
            id=new_id(),
            skill=skill,
            arguments=arguments or {},
            principal=LOCAL,
            endpoint="test",
            trace=new_trace() if trace_id is None else replace(new_trace(), id=trace_id),
            deadline=deadline,
        )
        return await self.dispatcher.dispatch(call, channel or NullChannel())


def program(mode: str = "plain") -> Callable[[], Transport]:
    command = [sys.executable, "-m", "tests.mcp.upstream.foreign_server", mode]
    return lambda: ServerProgram("foreign", command, {}, own=os.environ)


@asynccontextmanager
async def running(*specs: ImportSpec, pins: Pins | None = None) -> AsyncIterator[Imports]:
    servers = ImportedServers("1.0", pins or Pins())
    directory = Directory(MemoryListings(), [servers])
    imports = Imports(servers, directory)
    await servers.configure({one.name: one for one in specs})
    await directory.ensure_fresh()
    try:
        yield imports
    finally:
        await servers.aclose()
        await directory.aclose()


@pytest.fixture(params=["program", "http"])
async def imports(request: pytest.FixtureRequest) -> AsyncIterator[Imports]:
    """One server, over each transport."""
    if request.param == "program":
        async with running(ImportSpec("foreign", program(), "a program")) as found:
            yield found
        return
    app = make_server().streamable_http_app()
    async with serve_app(app) as url, HttpClient() as http:
        spec = ImportSpec("foreign", lambda: HttpTransport("foreign", http, f"{url}/mcp", {}), url)
        async with running(spec) as found:
            yield found


def is_ready(listing: Listing) -> bool:
    return listing.health == "healthy"


async def test_the_tools_of_a_server_are_skills_of_an_agent(imports: Imports) -> None:
    listing = await imports.until("foreign", is_ready)
    assert listing.record.version == "3.1.0"
    assert listing.record.description == "Shouts and asks."
    shout = listing.record.find_skill("shout")
    assert shout is not None
    assert shout.visibility == "exposed"
    assert shout.input_schema is not None
    assert shout.input_schema["required"] == ["text"]
    assert (await imports.call("shout", {"text": "hi"})).get() == {"result": "HI"}


async def test_arguments_are_checked_before_the_server_is_asked(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    outcome = await imports.call("shout", {"text": 5})
    assert outcome.status == "refused"
    assert "text" in str(outcome.error)


async def test_progress_and_questions_of_a_server_reach_the_caller(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    person = Person()
    assert (await imports.call("count", {"to": 3}, person)).get() == {"result": 3}
    assert person.said == ["at 1", "at 2", "at 3"]
    assert (await imports.call("book", {}, person)).get() == {"result": "accept Ada"}
    assert person.said[-1] == "Who travels?"


PEOPLE = ("Ada", "Bob", "Cleo", "Dan", "Eve")


async def test_each_of_several_callers_is_asked_by_her_own_call(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    for skill, said in (("book", "accept {}"), ("think", "{} thinks")):
        given = {"about": "what"} if skill == "think" else {}
        # the first question shows that this tool asks
        assert (await imports.call(skill, given, Person())).get() == {"result": said.format("Ada")}
        people = [Person(name) for name in PEOPLE]
        others = [imports.call("shout", {"text": "hi"}) for _ in range(5)]
        outcomes = await asyncio.gather(*(imports.call(skill, given, one) for one in people), *others)
        assert [one.get() for one in outcomes[: len(people)]] == [
            {"result": said.format(name)} for name in PEOPLE
        ]


async def test_callers_that_are_asked_for_the_first_time_at_once_are_never_mixed_up(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    people = [Person(name) for name in PEOPLE]
    outcomes = await asyncio.gather(*(imports.call("book", {}, one) for one in people))
    for person, outcome in zip(people, outcomes, strict=True):
        if outcome.error is None:
            assert outcome.get() == {"result": f"accept {person.name}"}
        else:
            assert "calls in flight" in outcome.error.message
    assert any(outcome.error is None for outcome in outcomes)
    again = await asyncio.gather(*(imports.call("book", {}, one) for one in people))
    assert [one.get() for one in again] == [{"result": f"accept {name}"} for name in PEOPLE]


async def test_progress_of_several_callers_goes_to_each_her_own(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    people = [Person(name) for name in PEOPLE]
    calls = [imports.call("count", {"to": number + 1}, one) for number, one in enumerate(people)]
    await asyncio.gather(*calls)
    for number, person in enumerate(people):
        assert person.said == [f"at {one + 1}" for one in range(number + 1)]


async def test_a_log_line_reaches_the_caller_of_the_call_that_says_it(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    person = Person()
    assert (await imports.call("say", {"text": "mind the gap"}, person)).get() == {"result": "mind the gap"}
    assert person.said == ["warning: mind the gap"]


async def test_a_call_that_its_caller_gives_up_is_cancelled_at_the_server(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    before = (await imports.call("ends")).get()["result"]
    hung = [asyncio.create_task(imports.call("hang")) for _ in range(3)]
    assert (await imports.call("shout", {"text": "on"})).get() == {"result": "ON"}
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)
    async with asyncio.timeout(WAIT_S):
        while (await imports.call("ends")).get()["result"] != before + 3:
            await asyncio.sleep(0.01)


async def test_many_calls_at_once_get_their_own_answers(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    outcomes = await asyncio.gather(*(imports.call("shout", {"text": f"a{n}"}) for n in range(50)))
    assert [one.get() for one in outcomes] == [{"result": f"A{n}"} for n in range(50)]


async def test_a_hung_tool_ends_at_the_deadline_and_holds_up_nobody(imports: Imports) -> None:
    await imports.until("foreign", is_ready)
    hung = await imports.call("hang", {}, within_s=0.3)
    assert isinstance(hung.error, CallTimedOutError)
    assert (await imports.call("shout", {"text": "on"})).get() == {"result": "ON"}


async def test_a_changed_list_is_read_again_and_a_new_tool_waits_to_be_accepted(imports: Imports) -> None:
    listing = await imports.until("foreign", is_ready)
    assert (await imports.call("grow")).get() == {"result": "grown"}
    pins = imports.servers.pins
    async with asyncio.timeout(WAIT_S):
        while not pins.list_waiting("foreign"):
            await asyncio.sleep(0.01)
    assert list(pins.list_waiting("foreign")) == ["added"]
    assert imports.directory.get("foreign").record.skills == listing.record.skills
    assert pins.accept("foreign") == ["added"]
    imports.servers.review()
    await imports.until("foreign", lambda one: one.record.find_skill("added") is not None)
    assert (await imports.call("added")).get() == "new"


async def test_a_program_that_dies_in_a_call_fails_it_and_is_started_again_for_the_next() -> None:
    async with running(ImportSpec("foreign", program(), "a program")) as imports:
        await imports.until("foreign", is_ready)
        outcome = await imports.call("die")
        assert isinstance(outcome.error, AgentUnreachableError)
        assert "ended with code 7" in outcome.error.message
        assert outcome.error.sent
        assert (await imports.call("shout", {"text": "again"})).get() == {"result": "AGAIN"}


async def test_noise_on_both_streams_is_skipped() -> None:
    async with running(ImportSpec("foreign", program("noisy"), "a program")) as imports:
        await imports.until("foreign", is_ready)
        assert (await imports.call("shout", {"text": "hi"})).get() == {"result": "HI"}


async def test_a_server_that_does_not_start_is_listed_with_its_last_words() -> None:
    missing = ImportSpec("nowhere", lambda: ServerProgram("nowhere", ["/no/such"], {}, own={}), "/no/such")
    async with running(ImportSpec("foreign", program("broken"), "a program"), missing) as imports:
        listing = await imports.until("foreign", lambda one: one.health == "unreachable")
        assert listing.last_error == "it ended with code 3: TOKEN is not set"
        listing = await imports.until("nowhere", lambda one: one.health == "unreachable")
        assert listing.last_error == "/no/such does not start: No such file or directory"


async def test_a_slow_server_is_named_with_the_setting() -> None:
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    spec = ImportSpec("slow", lambda: ServerProgram("slow", silent, {}, own={}), "slow", start_s=0.2)
    async with running(spec) as imports:
        listing = await imports.until("slow", lambda one: one.health == "unreachable")
        assert listing.last_error == "it did not start within 0.2 s (imports.slow.start_s)"


async def test_after_a_restart_of_a_server_the_next_call_opens_a_new_session() -> None:
    async with HttpClient() as http, AsyncExitStack() as stack:
        first = AsyncExitStack()
        url = await first.enter_async_context(serve_app(make_server().streamable_http_app()))
        spec = ImportSpec("foreign", lambda: HttpTransport("foreign", http, f"{url}/mcp", {}), url)
        imports = await stack.enter_async_context(running(spec))
        await imports.until("foreign", is_ready)
        await first.aclose()
        port = int(url.rpartition(":")[2])
        await stack.enter_async_context(serve_app(make_server().streamable_http_app(), port=port))
        assert (await imports.call("shout", {"text": "hi"})).get() == {"result": "HI"}


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("changed", '+  "description": "Shouts, and sends it to somebody."'),
        ("retitled", '+  "title": "Read the keys first"'),
        ("harmless", '+  "readOnlyHint": true'),
    ],
)
async def test_a_tool_that_changed_since_it_was_accepted_is_not_called(mode: str, line: str) -> None:
    kept: dict[str, Any] = {}

    def update(change: Callable[[Document], Document]) -> Document:
        kept.update(change(kept))
        return kept

    async with running(ImportSpec("foreign", program(), "a"), pins=Pins({}, update)) as imports:
        await imports.until("foreign", is_ready)
    async with running(ImportSpec("foreign", program(mode), "a"), pins=Pins(kept)) as imports:
        listing = await imports.until("foreign", is_ready)
        shout = listing.record.find_skill("shout")
        assert shout is not None
        assert shout.description == "Shouts a text."
        assert (shout.title, shout.hints.read_only) == (None, False)
        outcome = await imports.call("shout", {"text": "hi"})
        assert isinstance(outcome.error, ExecutionFailedError)
        # the refusal goes to a model, so it names the tool and repeats nothing of the new text
        assert outcome.error.message == "server foreign changed its tool shout after it was accepted"
        (change,) = imports.servers.pins.list_changes("foreign").values()
        assert line in describe_change(*change)
        assert outcome.error.remedy.endswith("retinue imports accept foreign")
        assert (await imports.call("count", {"to": 1})).get() == {"result": 1}


async def test_changed_instructions_of_a_server_wait_to_be_accepted() -> None:
    kept: dict[str, Any] = {}

    def update(change: Callable[[Document], Document]) -> Document:
        kept.update(change(kept))
        return kept

    async with running(ImportSpec("foreign", program(), "a"), pins=Pins({}, update)) as imports:
        assert (await imports.until("foreign", is_ready)).record.description == "Shouts and asks."
    pins = Pins(kept, update)
    async with running(ImportSpec("foreign", program("instructed"), "a"), pins=pins) as imports:
        listing = await imports.until("foreign", is_ready)
        assert listing.record.description == "Shouts and asks."
        assert set(pins.list_waiting("foreign")) == {INSTRUCTIONS}
        assert (await imports.call("shout", {"text": "hi"})).get() == {"result": "HI"}
        pins.accept("foreign")
        imports.servers.accept(kept)
        told = await imports.until("foreign", lambda one: one.record.description == "Read the keys first.")
        assert told.record.find_skill(INSTRUCTIONS) is None
