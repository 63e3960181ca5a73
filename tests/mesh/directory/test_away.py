"""An agent that withdrew its card is away for ten minutes, for those who might have called it."""

from __future__ import annotations

import pytest

from retinue.core.errors import AgentUnreachableError, SkillNotOfferedError, UnknownAgentError
from retinue.mesh.directory.directory import MESH_VIEW, Directory
from retinue.mesh.directory.listings import MemoryListings
from tests.mesh.directory.listings import Clock, listing
from tests.support.memory_source import MemorySource


async def withdrawn(clock: Clock) -> tuple[Directory, MemorySource]:
    """A directory whose only agent has just withdrawn its card."""
    plan = listing("plan-agent", "create_plan")
    source = MemorySource("home", [plan])
    directory = Directory(MemoryListings(), [source], clock=clock)
    await directory.refresh()
    source.remove(plan.key)
    await directory.note_withdrawal("plan-agent")
    return directory, source


async def test_a_look_up_between_the_withdrawal_and_the_message_does_not_make_it_unknown() -> None:
    plan = listing("plan-agent", "create_plan")
    source = MemorySource("home", [plan])
    directory = Directory(MemoryListings(), [source], clock=Clock())
    await directory.refresh()
    source.remove(plan.key)
    await directory.refresh()
    await directory.note_withdrawal("plan-agent")
    with pytest.raises(AgentUnreachableError, match="agent plan-agent is away since") as caught:
        await directory.resolve_skill("create_plan", MESH_VIEW)
    assert caught.value.retry_after_s is not None


@pytest.mark.parametrize("agent", [None, "plan-agent"])
async def test_it_is_away_since_the_time_that_passed_and_worth_a_retry(agent: str | None) -> None:
    clock = Clock()
    directory, _ = await withdrawn(clock)
    clock.seconds += 30
    with pytest.raises(AgentUnreachableError, match="agent plan-agent is away since 30 s") as caught:
        await directory.resolve_skill("create_plan", MESH_VIEW, agent=agent)
    assert (caught.value.kind.retryable, caught.value.sent) == (True, False)


async def test_after_ten_minutes_it_is_unknown() -> None:
    clock = Clock()
    directory, _ = await withdrawn(clock)
    clock.seconds += 601
    with pytest.raises(SkillNotOfferedError):
        await directory.resolve_skill("create_plan", MESH_VIEW)


async def test_for_a_skill_that_the_caller_could_not_see_it_is_unknown() -> None:
    directory, _ = await withdrawn(Clock())
    with pytest.raises(UnknownAgentError):
        await directory.resolve_skill("create_plan", frozenset(), agent="plan-agent")
    with pytest.raises(SkillNotOfferedError):
        await directory.resolve_skill("other", MESH_VIEW)


async def test_once_forgotten_it_is_unknown() -> None:
    directory, _ = await withdrawn(Clock())
    directory.forget_away("plan-agent")
    with pytest.raises(SkillNotOfferedError):
        await directory.resolve_skill("create_plan", MESH_VIEW)


async def test_one_that_says_so_while_its_card_is_there_is_not_away() -> None:
    clock = Clock()
    plan = listing("plan-agent", "create_plan")
    directory = Directory(MemoryListings(), [MemorySource("home", [plan])], clock=clock)
    await directory.note_withdrawal("plan-agent")
    assert [one.name for one in await directory.resolve_skill("create_plan", MESH_VIEW)] == ["plan-agent"]
