"""Which agents a caller sees, and whom an agent may call."""

from __future__ import annotations

import pytest

from retinue.core.call import ANONYMOUS, LOCAL, Call, Outcome, Principal, TraceContext
from retinue.core.errors import (
    NotAllowedError,
    RemoteFaultError,
    SkillNotOfferedError,
    UnknownAgentError,
    VersionConflictError,
)
from retinue.mesh.channel import Channel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.permissions import Access, AccessRule, is_seen
from retinue.runtime.joined_mesh import LimitedCalls
from tests.mesh.scripted import make_listing, make_skill
from tests.requirements import requirement

MESH = frozenset({"exposed", "mesh"})
CI = Principal("token:ci", "token", MESH)


def test_without_lists_and_limits_there_is_nothing_to_look_at() -> None:
    assert Access().view_of(ANONYMOUS) is None
    assert Access({"a": AccessRule(send=("b",))}).view_of(ANONYMOUS) is None


@requirement("S-17")
@pytest.mark.parametrize(
    ("caller", "sees"),
    [
        (Principal("build-agent", "mesh", MESH), True),
        (CI, True),
        (Principal("token:other", "token", MESH), False),
        (Principal("local", "mesh", MESH), False),
        (ANONYMOUS, False),
        (LOCAL, True),
    ],
)
def test_an_agent_hears_whom_its_list_names_and_itself(caller: Principal, sees: bool) -> None:
    access = Access({"plan-agent": AccessRule(receive=("build-*", "token:ci"))})
    assert is_seen(access.view_of(caller), "plan-agent") is sees
    assert is_seen(access.view_of(caller), "test-agent")


def test_an_empty_list_is_nobody() -> None:
    access = Access({"plan-agent": AccessRule(receive=())})
    assert not is_seen(access.view_of(CI), "plan-agent")


def test_a_limited_token_sees_what_fits_and_who_hears_it() -> None:
    access = Access({"plan-secret": AccessRule(receive=("local",))})
    view = access.view_of(Principal("token:ci", "token", MESH, ("plan-*", "retinue")))
    seen = [name for name in ("plan-agent", "plan-secret", "test-agent", "retinue") if is_seen(view, name)]
    assert seen == ["plan-agent", "retinue"]


@requirement("S-17")
async def test_who_is_not_seen_is_in_no_look_up_and_in_no_near_name() -> None:
    def directory(*names: str) -> Directory:
        held = Directory(MemoryListings())
        for name in names:
            held.upsert(make_listing(name))
        return held

    both, one = directory("plan-agent", "plan-agency"), directory("plan-agent")
    view = Access({"plan-agency": AccessRule(receive=())}).view_of(CI)
    assert [a.name for a in await both.resolve_skill("create_plan", MESH, view=view)] == ["plan-agent"]
    assert both.find("plan-agency", view=view) is None
    for wanted in ({"agent": "plan-agency"}, {"agent": "plan-agencies"}, {"agent": "plan-agenc"}):
        said = []
        for held, seen in ((both, view), (one, None)):
            with pytest.raises(Exception) as caught:
                await held.resolve_skill("create_plan", MESH, view=seen, **wanted)
            said.append((type(caught.value), str(caught.value), caught.value.remedy))  # type: ignore[attr-defined]
        assert said[0] == said[1]


async def test_a_skill_or_a_version_of_an_unseen_agent_is_not_hinted_at() -> None:
    held = Directory(MemoryListings())
    held.upsert(make_listing("plan-agent", version="1.0.0"))
    held.upsert(make_listing("plan-agency", version="2.0.0"))
    held.upsert(make_listing("draw-agency", make_skill("create_plane")))
    view = Access({}).view_of(Principal("token:ci", "token", MESH, ("plan-agent",)))
    with pytest.raises(SkillNotOfferedError) as missed:
        await held.resolve_skill("create_planes", MESH, view=view)
    assert missed.value.near == ("create_plan",)
    assert held.suggest_skills("create_planes", MESH) == ("create_plane", "create_plan")
    with pytest.raises(VersionConflictError) as conflict:
        await held.resolve_skill("create_plan", MESH, version_range=">=2", view=view)
    assert "2.0.0" not in str(conflict.value)
    for name in ("plan-agency", "plan-agency@home", "plan-agenc"):
        with pytest.raises(UnknownAgentError) as unknown:
            await held.open_named(name, view=view)
        assert "plan-agency" not in unknown.value.near
    assert (await held.open_named("plan-agent@home", view=view)).name == "plan-agent"


async def test_a_look_up_without_a_view_is_the_ready_made_one() -> None:
    held = Directory(MemoryListings())
    held.upsert(make_listing())
    assert await held.resolve_skill("create_plan", MESH) is held.find_by_skill("create_plan", MESH)


class Mesh:
    """Remembers what arrives; answers, or fails with ``error``."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[Call] = []
        self._error = error

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        self.calls.append(call)
        if self._error is not None:
            return Outcome(call.id, call.skill, "failed", error=self._error)  # type: ignore[arg-type]
        return Outcome(call.id, call.skill, "done", value="ok")


def make_call(skill: str, agent: str | None = None, agents: tuple[str, ...] = ()) -> Call:
    caller = Principal("plan-agent", "agent", MESH, agents)
    return Call("1", skill, {}, caller, "agent", TraceContext("t"), agent=agent)


@requirement("S-17")
@pytest.mark.parametrize(
    ("skill", "agent", "may"),
    [
        ("review_code", "test-agent", True),
        ("review_code", "test-agent@home", True),
        ("run_code", "test-agent", False),
        ("anything", "docs-agent", True),
        ("anything", "other-agent", False),
        ("read_file", "other-agent", True),
        ("review_code", None, True),
        ("read_file", None, True),
    ],
)
async def test_an_agent_calls_what_its_list_has(skill: str, agent: str | None, may: bool) -> None:
    mesh = Mesh()
    limited = LimitedCalls(mesh, "plan-agent", ("test-agent/review_*", "docs-*", "*/read_file"))
    outcome = await limited.dispatch(make_call(skill, agent))
    assert (outcome.status == "done") is may
    assert bool(mesh.calls) is may
    if not may:
        assert isinstance(outcome.error, NotAllowedError)
        assert "access.plan-agent.send" in outcome.error.remedy


async def test_a_call_by_skill_finds_nobody_beyond_the_list() -> None:
    mesh = Mesh()
    limited = LimitedCalls(mesh, "plan-agent", ("test-agent", "*/read_file"))
    await limited.dispatch(make_call("review_code"))
    await limited.dispatch(make_call("read_file"))
    assert [call.principal.agents for call in mesh.calls] == [("test-agent",), ()]


@pytest.mark.parametrize(
    "error",
    [
        SkillNotOfferedError("run_code"),
        RemoteFaultError("hub", -32601, "Unknown skill: run_code", {"type": "skill_not_offered"}),
    ],
)
async def test_an_agent_that_finds_nobody_within_its_list_is_told_of_the_list(error: Exception) -> None:
    outcome = await LimitedCalls(Mesh(error), "plan-agent", ("test-agent",)).dispatch(make_call("run_code"))
    assert isinstance(outcome.error, NotAllowedError)


async def test_limits_of_a_caller_and_of_a_list_are_not_mixed_up() -> None:
    mesh = Mesh()
    limited = LimitedCalls(mesh, "plan-agent", ("test-agent",))
    relayed = make_call("review_code", agents=("docs-*",))
    assert isinstance((await limited.dispatch(relayed)).error, NotAllowedError)
    assert not mesh.calls
