"""Which agent a step is given to: the one that the strategy names first, by a name that means it alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from retinue.core.call import Call, Outcome, Principal
from retinue.core.errors import AgentUnreachableError, LookupFailedError, UnknownAgentError
from retinue.core.record import Listing, ListingKey
from retinue.mesh.admission import Admission
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.routing import Strategy, first
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.entry import Entry
from retinue.workflows.caller import Choice
from retinue.workflows.dispatch_caller import DispatchCaller, RoleChoice
from retinue.workflows.runs.records import Origin, Reach, as_json, read_json
from tests.mesh.directory.listings import listing
from tests.mesh.scripted import PLAN_INPUT, ScriptedInvoker, ScriptedLookup, make_dispatcher, make_listing
from tests.support.memory_source import MemorySource

MESH = frozenset({"mesh"})


def caller(*listings: Listing, strategy: Strategy = first) -> DispatchCaller:
    lookup, invoker = ScriptedLookup(list(listings)), ScriptedInvoker()
    dispatcher = Dispatcher("hub", lookup, lambda _: invoker)
    return DispatchCaller(
        dispatcher,
        lookup,
        Admission(),
        agent="hub",
        directory=Directory(MemoryListings()),
        strategy=strategy,
    )


async def test_a_choice_says_who_takes_the_step_and_what_goes_in() -> None:
    choice = await caller(make_listing("a"), make_listing("b")).choose("create_plan", scopes=MESH)
    assert (choice.agent, choice.version, choice.url) == ("a", "1.0.0", "http://a:8001")
    assert choice.input_schema == PLAN_INPUT


async def test_the_strategy_chooses_and_no_dead_agent_is_chosen_while_another_lives() -> None:
    agents = [make_listing("a"), make_listing("b"), make_listing("c", reachable=False)]
    backwards = caller(*agents, strategy=lambda live, _: live[::-1])
    assert (await backwards.choose("create_plan", scopes=MESH)).agent == "b"


async def test_of_two_agents_of_one_name_the_chosen_one_is_named_with_its_source() -> None:
    here, there = make_listing("a"), replace(make_listing("a", url="http://far:1"), source="far")
    choice = await caller(here, there, strategy=lambda live, _: live[::-1]).choose("create_plan", scopes=MESH)
    assert (choice.agent, choice.url) == ("a@far", "http://far:1")


async def test_what_was_chosen_on_one_machine_is_called_on_another_where_its_source_has_another_name() -> (
    None
):
    far, near = make_listing("a", url="http://far:1"), make_listing("a", url="http://near:1")
    there = caller(replace(far, source="home"), replace(near, source="http://here:9000"))
    choice = await there.choose("create_plan", scopes=MESH)
    assert choice.agent == "a@home"
    for listings in (
        [replace(near, source="home"), replace(far, source="http://there:9000")],
        [replace(far, source="http://there:9000")],
    ):
        asked: list[str | None] = []

        def invoker_of(listing: Listing, asked: list[str | None] = asked) -> ScriptedInvoker:
            asked.append(listing.record.url)
            return ScriptedInvoker()

        lookup = ScriptedLookup(listings)
        here = DispatchCaller(
            Dispatcher("hub", lookup, invoker_of),
            lookup,
            Admission(),
            agent="hub",
            directory=Directory(MemoryListings()),
        )
        outcome = await here.call(
            choice,
            "create_plan",
            {"requirements": "a parser"},
            run_id="r",
            path="s",
            idempotency_key="r/s",
            timeout_s=5.0,
            origin=Origin(frozenset({"mesh"}), "local"),
        )
        assert outcome.error is None
        assert asked == ["http://far:1"]


async def test_a_step_is_called_with_the_limits_of_the_agent_that_started_the_run() -> None:
    callers: list[Principal] = []

    async def keep(call: Call) -> dict[str, str]:
        callers.append(call.principal)
        return {"plan": "1."}

    dispatcher, lookup, _ = make_dispatcher(acts={"plan-agent": keep})
    steps = DispatchCaller(
        dispatcher, lookup, Admission(), agent="hub", directory=Directory(MemoryListings())
    )
    outcome = await steps.call(
        await steps.choose("create_plan", scopes=MESH),
        "create_plan",
        {"requirements": "a parser"},
        run_id="r",
        path="s",
        idempotency_key="r/s",
        timeout_s=5.0,
        origin=Origin(MESH, "token:bob", reach=Reach(through="bot", send=("plan-agent",))),
    )
    assert outcome.error is None
    # policies about the agent count, and a run that such a step starts has its limits
    assert callers == [Principal("token:bob", "run", MESH, through="bot", send=("plan-agent",))]


class CountingDirectory(Directory):
    """Counts the look-ups by skill."""

    look_ups = 0

    async def resolve_skill(self, *arguments: Any, **options: Any) -> tuple[Entry, ...]:
        self.look_ups += 1
        return await super().resolve_skill(*arguments, **options)


async def run_step(directory: CountingDirectory, choice: Choice, invoker: ScriptedInvoker) -> Outcome:
    caller = DispatchCaller(
        Dispatcher("hub", directory, lambda _: invoker),
        directory,
        Admission(),
        agent="hub",
        directory=directory,
    )
    return await caller.call(
        choice,
        "create_plan",
        {"requirements": "a parser"},
        run_id="r",
        path="s",
        idempotency_key="r/s",
        timeout_s=5.0,
        origin=Origin(MESH, "local"),
    )


async def test_a_step_looks_its_agent_up_once() -> None:
    source = MemorySource("home", [listing("a"), listing("b")])
    directory, invoker = CountingDirectory(MemoryListings(), [source]), ScriptedInvoker()
    caller = DispatchCaller(
        Dispatcher("hub", directory, lambda _: invoker),
        directory,
        Admission(),
        agent="hub",
        directory=directory,
        strategy=lambda live, _: live[::-1],
    )
    choice = await caller.choose("create_plan", scopes=MESH)
    assert choice.listing == listing("b").id
    assert (await run_step(directory, choice, invoker)).error is None
    assert invoker.invoked == ["b"]
    assert directory.look_ups == 1


@pytest.mark.parametrize("change", ["moved", "disabled", "hidden", "gone"])
async def test_a_chosen_listing_that_changed_is_looked_up_by_its_name_again(change: str) -> None:
    source = MemorySource("home", [listing("a"), listing("b")])
    directory, invoker = CountingDirectory(MemoryListings(), [source]), ScriptedInvoker()
    await directory.refresh()
    choice = Choice("a", "create_plan", "1.0.0", listing("a").record.url, listing=listing("a").id)
    if change == "moved":
        directory.upsert(listing("a", url="http://a.example:9"))
    elif change == "disabled":
        directory.set_enabled(directory.get("a"), False)
    elif change == "hidden":
        source.put(listing("a", visibility="private"))
        await directory.refresh()
    else:
        source.remove("agents/a")
        directory.remove(listing("a").id)
    outcome = await run_step(directory, choice, invoker)
    assert directory.look_ups > 0
    if change == "moved":
        assert (outcome.error, outcome.agent) == (None, "a")
    else:
        assert isinstance(outcome.error, LookupFailedError)
        assert invoker.invoked == []


async def test_a_listing_that_means_another_agent_on_this_machine_is_not_called() -> None:
    directory = CountingDirectory(MemoryListings())
    directory.upsert(listing("a", key="agents/x"))
    directory.upsert(replace(listing("b"), source="far"))
    choice = Choice(
        "b", "create_plan", "1.0.0", listing("b").record.url, listing=ListingKey("home", "agents/x", "v1")
    )
    invoker = ScriptedInvoker()
    assert (await run_step(directory, choice, invoker)).error is None
    assert invoker.invoked == ["b"]


def test_a_choice_is_read_back_also_from_the_runs_of_earlier_releases() -> None:
    choice = Choice("a", "create_plan", url="http://a", listing=ListingKey("home", "agents/a", "v1"))
    stored = orjson.loads(orjson.dumps(as_json(choice)))
    assert stored["listing"] == ["home", "agents/a", "v1"]
    assert read_json(Choice, stored) == choice
    del stored["listing"]
    assert read_json(Choice, stored) == replace(choice, listing=None)


async def test_an_agent_that_is_named_for_a_role_and_withdrew_its_card_is_away() -> None:
    critic = listing("critic", "review")
    source = MemorySource("home", [critic])
    directory = Directory(MemoryListings(), [source])
    await directory.refresh()
    source.remove(critic.key)
    await directory.note_withdrawal("critic")
    roles = RoleChoice(directory, first)
    with pytest.raises(AgentUnreachableError, match="agent critic is away since"):
        await roles.list_role("review", ["critic"], MESH)
    with pytest.raises(UnknownAgentError):
        await roles.list_role("review", ["nobody"], MESH)
