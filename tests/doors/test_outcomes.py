"""What came of calls that words led to, at the surfaces of a hub: each outcome, and each way of choosing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from retinue.authoring.agent import Agent
from retinue.core.call import LOCAL
from retinue.core.record import Example
from retinue.mesh.directory.directory import Directory
from retinue.mesh.exams import ExamBook, ExamResult, digest_of
from retinue.mesh.history.records import Hashes
from retinue.mesh.history.search_history import EndedCall, SearchHistory
from retinue.settings_tables import ExamTable, HistoryTable
from retinue.storage.state import State
from retinue.testing import ScriptedModel
from retinue.web.issued_tokens import TokenFile
from tests.doors.office import Office
from tests.doors.test_policies import write_policies
from tests.doors.test_think_choice import FINDS, WARM, make_met, make_writer, start
from tests.mcp.clients import connect, texts
from tests.system import Hub, System, Wire, open_system

QUERY = {"query": "plan a journey by train"}
CLOSED = (
    '@id("closed") forbid(principal, action == Retinue::Action::"call", resource == '
    'Retinue::Skill::"trips/book_trip") when { context.args has place && context.args.place == "closed" };'
)


def make_agents() -> tuple[Agent, Agent]:
    routes, trips = Agent("routes", version="1.0.0"), Agent("trips", version="1.0.0")

    @routes.skill(read_only=True, examples=[Example(arguments={"place": "Rome"})])
    async def plan_route(place: str) -> str:
        """Plans a journey by train."""
        if place == "nowhere":
            raise ValueError(place)
        return f"to {place}"

    @trips.skill(read_only=True, expose=True)
    async def book_trip(place: str) -> str:
        """Plans a journey by train, with a hotel."""
        return f"at {place}"

    return routes, trips


class Caller:
    """The owner at the hub over HTTP."""

    def __init__(self, system: System, hub: Hub, wire: Wire) -> None:
        self.system, self.hub, self.wire = system, hub, wire

    async def get(self, skill: str, arguments: Any = None) -> Any:
        reply = await self.wire.call(self.hub.url, skill, arguments, authorization=self.system.token)
        return reply.json.get("result", reply.json.get("error"))

    async def verdicts(self) -> dict[str, Mapping[str, int]]:
        rows = (await self.get("show_history"))["skills"]
        return {row["skill"]: row["verdicts"] for row in rows}


async def open_caller(system: System, wire: Wire, **options: Any) -> Caller:
    for agent in make_agents():
        await system.start_agent(agent)
    return Caller(system, await system.start_hub(**options), wire)


async def test_each_outcome_of_a_call_is_kept_and_the_tool_rate_call_changes_it(
    system: System, wire: Wire
) -> None:
    write_policies(system, CLOSED)
    caller = await open_caller(system, wire)
    for skill, place, verdict in (
        ("plan_route", "Rome", "done"),
        ("plan_route", "nowhere", "failed"),
        ("book_trip", "closed", "refused"),
    ):
        search = (await caller.get("find_skills", QUERY))["search"]
        await caller.get("call_skill", {"skill": skill, "arguments": {"place": place}, "search": search})
        assert (await caller.verdicts())[skill][verdict] == 1, verdict
    await caller.get("find_skills", QUERY)
    for skill in ("plan_route", "book_trip"):
        await caller.get(skill, {"place": "Rome"})
    assert (await caller.verdicts())["plan_route"]["corrected"] == 1
    assert (await caller.verdicts())["book_trip"] == {"refused": 1, "done": 1}
    async with connect(f"{caller.hub.url}/mcp", authorization=system.token) as client:
        rated = await client.call_tool("rate_call", {"skill": "book_trip", "verdict": "bad"})
    assert not rated.is_error, texts(rated)
    assert (await caller.verdicts())["book_trip"] == {"refused": 1, "bad": 1}


async def test_a_rating_that_names_an_agent_is_for_the_newest_call_of_that_agent(
    system: System, wire: Wire
) -> None:
    north, south = Agent("north", version="1.0.0"), Agent("south", version="1.0.0")
    for agent in (north, south):
        agent.skill("plan_route", description="Plans a journey by train", read_only=True)(make_answer())
        await system.start_agent(agent)
    caller = Caller(system, await system.start_hub(), wire)

    async def verdicts() -> dict[str, Mapping[str, int]]:
        return {row["agent"]: row["verdicts"] for row in (await caller.get("show_history"))["skills"]}

    for name in ("north", "south"):
        await caller.get("find_skills", QUERY)
        called = {"skill": "plan_route", "arguments": {"text": "Rome"}, "agent": name}
        assert await caller.get("call_skill", called) == "Rome"
    rating = {"skill": "plan_route", "verdict": "bad"}
    assert (await caller.get("rate_call", {**rating, "agent": "north"}))["agent"] == "north"
    assert await verdicts() == {"north": {"bad": 1}, "south": {"done": 1}}
    refused = await caller.get("rate_call", {**rating, "agent": "east"})
    assert "no call of plan_route of east by you" in str(refused)
    refused = await caller.get("rate_call", {**rating, "agent": "e" * 100_000})
    assert len(str(refused)) < 2_000
    assert await verdicts() == {"north": {"bad": 1}, "south": {"done": 1}}
    good = {"skill": "plan_route", "verdict": "good"}
    assert (await caller.get("rate_call", {**good, "agent": "south@1.0.0"}))["agent"] == "south"
    assert await verdicts() == {"north": {"bad": 1}, "south": {"good": 1}}


async def test_a_caller_of_exposed_skills_rates_its_own_calls_and_those_of_nobody_else(
    system: System, wire: Wire
) -> None:
    caller = await open_caller(system, wire)
    tokens = TokenFile(system.state.keys)
    _, guest = tokens.issue(("exposed",), name="guest")
    _, other = tokens.issue(("exposed",), name="other")

    async def ask(token: str, skill: str, arguments: Any) -> Any:
        reply = await wire.call(caller.hub.url, skill, arguments, authorization=f"Bearer {token}")
        return reply.json.get("result", reply.json.get("error"))

    await ask(guest, "find_skills", QUERY)
    assert await ask(guest, "book_trip", {"place": "Rome"}) == "at Rome"
    assert await caller.verdicts() == {"book_trip": {"done": 1}}
    rating = {"skill": "book_trip", "verdict": "bad"}
    assert "no call of book_trip by you" in str(await ask(other, "rate_call", rating))
    assert await caller.verdicts() == {"book_trip": {"done": 1}}
    assert (await ask(guest, "rate_call", rating))["verdict"] == "bad"
    assert await caller.verdicts() == {"book_trip": {"bad": 1}}
    for skill in ("show_history", "forget_history", "list_wishes"):
        assert "skill_not_offered" in str(await ask(guest, skill, {})), skill


HOSTILE_RATINGS: tuple[tuple[Any, str], ...] = (
    ({"skill": "plan_route", "verdict": "good", "search": "0123456789"}, "no call of plan_route by you"),
    ({"skill": "plan_route", "verdict": "good", "search": "x" * 100_000}, "no call of plan_route by you"),
    ({"skill": "plan_route\u202e" * 50_000, "verdict": "bad"}, "no call of plan_route"),
    ({"skill": "", "verdict": "bad"}, "no call of"),
    ({"skill": "plan_route", "verdict": "perfect"}, "verdict"),
    ({"skill": "plan_route", "verdict": ["good"]}, "verdict"),
    ({"skill": "plan_route"}, "verdict"),
    ({"skill": None, "verdict": "good"}, "skill"),
    ({"skill": "plan_route", "verdict": "good", "caller": "token:ben"}, "caller"),
)


async def test_a_rating_that_names_no_own_call_is_refused_and_changes_nothing(
    system: System, wire: Wire
) -> None:
    caller = await open_caller(system, wire)
    search = (await caller.get("find_skills", QUERY))["search"]
    await caller.get("plan_route", {"place": "Rome"})
    for arguments, problem in HOSTILE_RATINGS:
        refused = await caller.get("rate_call", arguments)
        assert refused["data"]["type"] == "validation_error", arguments
        assert problem in str(refused)
        assert len(str(refused)) < 2_000
    mine = {"skill": "plan_route", "verdict": "bad", "search": search}
    stranger = await wire.call(caller.hub.url, "rate_call", mine)
    assert "no call of plan_route by you" in str(stranger.error)
    assert await caller.verdicts() == {"plan_route": {"done": 1}}
    replies = await asyncio.gather(*(caller.get("rate_call", mine) for _ in range(10)))
    assert [reply["verdict"] for reply in replies] == ["bad"] * 10
    assert await caller.verdicts() == {"plan_route": {"bad": 1}}


async def test_each_way_of_choosing_by_words_leaves_what_came_of_it(office: Office) -> None:
    await start(office, make_met(), make_writer(), ScriptedModel(*FINDS, "4"))
    history, hashes = office.hub.process.get(SearchHistory), Hashes(office.system.state.mesh_key())

    def take(text: str) -> list[tuple[str, str]]:
        """Skill and verdict of the records of a request."""
        stems = hashes.of_request(text)
        return [(one.key.skill, one.verdict) for one in history.list_records() if one.stems == stems]

    await office.get("orchestrate", WARM)
    assert take("weather of a city") == [("weather", "done")], "the model's search"
    polish = "Polish this poem"
    preferences = {"workflow": "direct", "agent": "writer"}
    await office.get("orchestrate", {"prompt": polish, "preferences": preferences})
    assert take(polish) == [("execute", "done")], "a step of a role"
    begun = await office.get("start_run", {"workflow": "auto", "input": {"prompt": "Add two and two"}})
    await office.follow(begun["run"])
    assert [verdict for _, verdict in take("Add two and two")] == ["done"], "auto"
    asked = {"query_type": "specific", "query_parameters": {"capabilities": ["weather"]}, "agent": "*"}
    await office.get("query_capabilities", asked)
    await office.get("weather", {"city": "Rome"})
    assert take("weather") == [("weather", "done")], "ask"
    fixed = {"name": "fixed", "steps": [{"id": "a", "skill": "weather", "with": {"city": "Rome"}}]}
    folder = office.system.state.root / "workflows"
    folder.mkdir(exist_ok=True)
    (folder / "fixed.json").write_bytes(orjson.dumps(fixed))
    reply = await office.get(
        "orchestrate", {"prompt": "Count the stars", "preferences": {"workflow": "fixed"}}
    )
    assert reply["agents"] == ["met"]
    assert take("Count the stars") == [], "a skill that the workflow names"


async def test_a_workflow_puts_nothing_into_the_mouth_of_a_person_who_searched_before(
    office: Office,
) -> None:
    await start(office, make_met(), make_writer())
    history, hashes = office.hub.process.get(SearchHistory), Hashes(office.system.state.mesh_key())
    step: dict[str, Any] = {"id": "a", "skill": "weather", "with": {"city": "Rome"}}
    search = {"id": "s", "skill": "find_skills", "with": {"query": "a city in summer weather"}}
    folder = office.system.state.root / "workflows"
    folder.mkdir(exist_ok=True)
    (folder / "fixed.json").write_bytes(orjson.dumps({"name": "fixed", "steps": [step]}))
    (folder / "searching.json").write_bytes(orjson.dumps({"name": "searching", "steps": [search, step]}))
    assert (await office.get("find_skills", {"query": "weather of a city"}))["skills"]
    begun = await office.get("start_run", {"workflow": "fixed", "input": {}})
    assert (await office.follow(begun["run"]))["status"] == "done"
    assert [*history.list_records()] == []
    begun = await office.get("start_run", {"workflow": "searching", "input": {}})
    assert (await office.follow(begun["run"]))["status"] == "done"
    (record,) = history.list_records()
    assert record.stems == hashes.of_request("a city in summer weather"), "the search of the run"
    await office.get("weather", {"city": "Rome"})
    assert len({one.stems for one in history.list_records()}) == 2, "the person's own call"


async def test_a_required_exam_leaves_agents_out_of_each_choice_and_of_no_list(office: Office) -> None:
    model = ScriptedModel("by the model", repeats=True)
    await start(office, make_met(), make_writer(), model)
    book, directory = office.hub.process.get(ExamBook), office.hub.process.get(Directory)
    book.policy = "require"
    office.hub.process.dispatcher.select = book.select

    async def choose() -> tuple[str, list[str]]:
        reply = await office.get("orchestrate", {**WARM, "preferences": {"cache": False}})
        return reply["workflow"], reply["agents"]

    assert await choose() == ("direct", ["scripted"]), "own models have no exam"
    refused = await office.ask("weather", {"city": "Rome"})
    assert "no agent that offers it has passed its exam; name one of them: met" in str(refused.error)
    named = {"skill": "weather", "arguments": {"city": "Rome"}, "agent": "met"}
    assert await office.get("call_skill", named) == "Rome: 31 degrees"
    found = await office.get("find_skills", {"query": "weather of a city"})
    assert {"weather", "execute"} <= {row["skill"] for row in found["skills"]}
    listed = (await office.get("list_agents"))["agents"]
    assert {"met", "writer"} <= {row["name"] for row in listed}
    role = {"prompt": "Polish this poem", "preferences": {"workflow": "direct"}}
    assert (await office.get("orchestrate", role))["agents"] == ["scripted"]
    for name in ("met", "writer"):
        entry = directory.find_named(name)
        assert entry is not None
        book.put(entry, ExamResult("passed", (), 1, 1.0, digest_of(entry)))
    assert (await choose())[0] == "think"
    assert await office.get("weather", {"city": "Rome"}) == "Rome: 31 degrees"


async def test_with_everything_off_nothing_is_stored(retinue_home: Path, wire: Wire) -> None:
    off = {"history": HistoryTable(keep=False), "exam": ExamTable(policy="off")}
    async with open_system(State(retinue_home), **off) as system:
        caller = await open_caller(system, wire, dashboard=True)
        reply = await caller.get("find_skills", {**QUERY, "why": "routes", "detailed": True})
        assert "search" not in reply
        assert {row["history"] for row in reply["learned"]} == {0.0}
        assert "exam" not in str(reply["why"])
        call = {"skill": "plan_route", "arguments": {"place": "Rome"}, "search": "0123456789"}
        assert await caller.get("call_skill", call) == "to Rome"
        await caller.get("find_skills", {"query": "a taxi to the moon"})
        assert "no call of plan_route" in str(
            await caller.get("rate_call", {"skill": "plan_route", "verdict": "good"})
        )
        assert await caller.verdicts() == {}
        because = "history.keep is false"
        shown = await caller.get("show_history")
        assert (shown["kept"], shown["because"]) == (False, because)
        assert await caller.get("list_wishes") == {
            "kept": "off",
            "because": because,
            "wishes": [],
            "more": 0,
        }
        assert await caller.get("forget_history") == {"forgotten": 0}
        assert "exam" not in await caller.get("show_agent", {"name": "routes"})
        history = caller.hub.process.get(SearchHistory)
        await history.flush()
        assert [*history._searches, *history._runs, *history._expected, *history._digests] == []
    files = list_files(retinue_home)
    assert not {path.name.partition(".")[0] for path in files} & {"history", "exams", "receipts"}
    assert not any(b"taxi" in path.read_bytes() for path in files if "audit" not in path.name)


def list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_the_dashboard_says_in_words_why_a_skill_has_its_place(system: System, wire: Wire) -> None:
    ends = "Ends the order of a parcel and refunds it"
    for name, skill, description in (
        ("parcels", "track_parcel", "Tells where a parcel is"),
        ("orders", "cancel_order", ends),
        ("shop", "stop_order", ends),
    ):
        agent = Agent(name, version="1.0.0")
        agent.skill(skill, description=description, read_only=True)(make_answer())
        await system.start_agent(agent)
    hub = await system.start_hub(dashboard=True)
    history, directory = hub.process.get(SearchHistory), hub.process.get(Directory)
    await directory.ensure_fresh()
    entry = directory.find_named("orders")
    assert entry is not None
    for number in range(6):
        text = "my parcel is late, I want the money back"
        search = history.note_search(LOCAL, text, [(entry, "cancel_order")])
        history.keep(
            EndedCall(f"t{number}", "cancel_order", "orders", "local", False, "done", None, str(search))
        )

    async def read(query: str) -> str:
        url = f"{hub.url}/ui/agents?q={query.replace(' ', '+')}"
        return (await wire.get(url, authorization=system.token, accept="text/html")).body.decode()

    history.explored = 0.0
    page = await read("where is my parcel")
    assert "it keeps this place because earlier calls for similar requests say nothing else" in page
    assert "behind a skill without calls whose card fits better" in page
    page = await read("money back for the late parcel")
    assert "earlier calls; what came of similar requests is +" in page
    assert "for its card; no call of it counts yet" in page
    history.explored = 1.0
    assert "it has the first place in this hour because it fits equally" in await read(text)


def make_answer() -> Callable[[str], Awaitable[str]]:
    async def answer(text: str) -> str:
        return text

    return answer
