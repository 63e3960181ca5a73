"""Models that this machine cannot start: listed with the reason, unless their name is taken."""

from __future__ import annotations

import pytest

from retinue.core.call import ANONYMOUS, Call
from retinue.core.errors import AgentUnreachableError
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.llm.model_agent import describe_model
from retinue.llm.not_started import ModelsNotStarted
from retinue.llm.spec import SEED_MODELS, ModelSpec, Unavailable
from retinue.mesh.channel import NullChannel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.routing import make_strategy
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import new_trace
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.thinking.completion import COMPLETE
from tests.support.memory_source import MemorySource

EXPOSED = frozenset({"exposed", "mesh"})
PLAN = Skill("plan", "Plans.", roles=("plan",), visibility="exposed")
MISSING = Unavailable("no ANTHROPIC_API_KEY", "set ANTHROPIC_API_KEY")


def make_models() -> ModelsNotStarted:
    return ModelsNotStarted({"claude": (AgentRecord("claude", skills=(PLAN,)), MISSING)})


def own(name: str) -> Listing:
    record = AgentRecord(name, endpoints=(Endpoint("execute", "http://127.0.0.1:1"),), skills=(PLAN,))
    return Listing(record=record, source="home", key=f"agents/{name}", digest="sha256:1")


async def test_it_is_listed_as_unavailable_with_the_reason_and_the_remedy() -> None:
    models = make_models()
    directory = Directory(MemoryListings(), [models])
    models.watch(directory)
    await directory.ensure_fresh()
    entry = directory.find_named("claude")
    assert entry is not None
    assert (entry.health, entry.last_error) == (
        "unreachable",
        "no ANTHROPIC_API_KEY; set ANTHROPIC_API_KEY",
    )
    assert [one.name for one in directory.list_with_role("plan", EXPOSED)] == ["claude"]
    assert models.describe() == ["claude is not started: no ANTHROPIC_API_KEY; set ANTHROPIC_API_KEY"]


async def test_a_call_fails_with_the_reason_and_the_remedy() -> None:
    models = make_models()
    directory = Directory(MemoryListings(), [models])
    strategy = make_strategy("best", AgentStatsTable())
    dispatcher = Dispatcher("retinue", directory, lambda listing: models, strategy=strategy)
    call = Call("1", "plan", {"prompt": "x"}, ANONYMOUS, "execute", new_trace())
    outcome = await dispatcher.dispatch(call, NullChannel())
    assert isinstance(outcome.error, AgentUnreachableError)
    assert outcome.error.message == "agent claude is not started: no ANTHROPIC_API_KEY"
    assert outcome.error.remedy == "set ANTHROPIC_API_KEY, and restart the hub"
    assert not outcome.error.sent
    for _ in range(10):
        outcome = await dispatcher.dispatch(call, NullChannel())
        assert outcome.error is not None
        assert "no ANTHROPIC_API_KEY" in outcome.error.message


@pytest.mark.parametrize("is_there_first", [True, False])
async def test_an_agent_of_the_same_name_takes_its_place_and_gives_it_back(is_there_first: bool) -> None:
    models, home = make_models(), MemorySource("home")
    directory = Directory(MemoryListings(), [home, models])
    models.watch(directory)
    if not is_there_first:
        await directory.ensure_fresh()
    home.put(own("claude"))
    await directory.refresh()
    await directory.ensure_fresh()
    assert [(one.name, one.source) for one in directory.list_entries()] == [("claude", "home")]
    home.remove("agents/claude")
    await directory.refresh()
    await directory.ensure_fresh()
    assert [(one.name, one.source) for one in directory.list_entries()] == [("claude", "models")]
    entry = directory.find_named("claude")
    assert entry is not None
    assert entry.last_error == "no ANTHROPIC_API_KEY; set ANTHROPIC_API_KEY"


async def test_a_conversation_with_tools_for_such_a_model_fails_with_the_reason_and_the_remedy() -> None:
    models = ModelsNotStarted({"claude": (describe_model(SEED_MODELS["claude"], "1.0.0"), MISSING)})
    directory = Directory(MemoryListings(), [models])
    strategy = make_strategy("best", AgentStatsTable())
    dispatcher = Dispatcher("retinue", directory, lambda listing: models, strategy=strategy)
    message = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    call = Call("1", COMPLETE, {"messages": [message]}, ANONYMOUS, "execute", new_trace(), agent="claude")
    outcome = await dispatcher.dispatch(call, NullChannel())
    assert isinstance(outcome.error, AgentUnreachableError)
    assert outcome.error.remedy == "set ANTHROPIC_API_KEY, and restart the hub"


def test_a_command_line_agent_that_is_not_started_offers_no_conversations() -> None:
    record = describe_model(ModelSpec("codex", command="codex", backend="command"), "1.0.0")
    assert COMPLETE not in [skill.id for skill in record.skills]
