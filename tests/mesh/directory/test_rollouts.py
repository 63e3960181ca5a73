"""Two digests of a team beside each other: a chain chooses once, by weight, and keeps its choice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.call import ANONYMOUS, Answer, Call, Principal, TraceContext, TraceExtension
from retinue.core.errors import AgentUnreachableError, UnknownAgentError
from retinue.core.record import Listing, Skill
from retinue.mesh.admission import Admission
from retinue.mesh.channel import Channel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.rollouts import CHOSEN, Rollout, Rollouts, read_mark, team_tag
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.observing.events import CallEndedEvent, Event
from tests.mesh.directory.listings import MESH, listing

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
OLD_MARK, NEW_MARK = "a" * 12, "b" * 12
RUN = Principal("run-1", "run", frozenset({"exposed", "mesh"}))

weights = st.integers(0, 100)
chains = st.text(max_size=40)


@given(chains, weights, weights)
def test_a_chain_of_the_new_digest_keeps_it_at_a_higher_weight(chain: str, first: int, other: int) -> None:
    low, high = sorted((first, other))
    before, after = (Rollout("words", OLD_MARK, NEW_MARK, weight).choose(chain) for weight in (low, high))
    assert after == NEW_MARK or before == OLD_MARK
    assert Rollout("words", OLD_MARK, NEW_MARK, 0).choose(chain) == OLD_MARK
    assert Rollout("words", OLD_MARK, NEW_MARK, 100).choose(chain) == NEW_MARK


@given(st.integers(1, 9), st.integers(0, 10**6))
def test_the_new_digest_gets_its_share_of_the_chains(tenths: int, seed: int) -> None:
    rollout = Rollout(f"words-{seed}", OLD_MARK, NEW_MARK, tenths * 10)
    share = sum(rollout.choose(f"chain-{number}") == NEW_MARK for number in range(2_000)) / 2_000
    assert abs(share - tenths / 10) < 0.08


@given(
    st.from_regex(r"\A[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(-rc\.1)?\Z"),
    st.text("0123456789abcdef", min_size=64, max_size=64),
)
def test_a_tag_names_its_digest(version: str, digest: str) -> None:
    assert read_mark(team_tag(version, f"sha256:{digest}")) == digest[:12]
    assert read_mark(f"v{version}") == ""


def agent(name: str, digest: str, *, version: str = "1.0.0", skill: str = "count") -> Listing:
    url = f"http://{name}-{digest[7:9]}.example:8001"
    made = listing(name, skill, version=version, url=url)
    return replace(made, tag=team_tag(version, digest), digest=f"{digest}{name}")


@dataclass
class Agents:
    """Answers with the tag of the agent that was called, or not at all."""

    dead: set[str] = field(default_factory=set)
    traces: list[TraceContext] = field(default_factory=list)

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        mark = read_mark(listing.tag)
        self.traces.append(call.trace)
        if mark in self.dead:
            raise AgentUnreachableError(listing.name, "its url", "refused", sent=False)
        return Answer(mark or "none")


@dataclass
class Mesh:
    directory: Directory
    dispatcher: Dispatcher
    rollouts: Rollouts
    agents: Agents

    def roll(self, weight: int, *, has_failed: bool = False) -> None:
        rollout = Rollout("words", OLD_MARK, NEW_MARK, weight, has_failed)
        self.rollouts.configure([rollout], list(self.directory.list_held()))

    async def call(
        self, chain: str = "", *, skill: str = "count", agent: str | None = None, **fields: object
    ) -> object:
        principal = fields.pop("principal", ANONYMOUS)
        listing_id = fields.pop("listing", None)
        trace = fields.pop("trace", None) or TraceContext(id=chain, trusted=True, **fields)  # type: ignore[arg-type]
        call = Call("1", skill, {}, principal, "execute", trace, agent, listing=listing_id)  # type: ignore[arg-type]
        return (await self.dispatcher.dispatch(call)).get()


@pytest.fixture
def mesh() -> Mesh:
    directory, agents = Directory(MemoryListings()), Agents()
    rollouts = Rollouts(directory.set_enabled)
    directory.subscribe(rollouts.note)
    directory.find_hidden = rollouts.find_hidden
    dispatcher = Dispatcher("retinue", directory, lambda listing: agents, Admission(), rollouts=rollouts)
    made = Mesh(directory, dispatcher, rollouts, agents)
    directory.upsert(agent("word", OLD))
    made.roll(0)
    directory.upsert(agent("word", NEW, version="1.1.0"))
    return made


def chain_of(rollout: Rollout, mark: str) -> str:
    return next(chain for chain in map(str, range(1, 10_000)) if rollout.choose(chain) == mark)


async def test_at_weight_0_lists_and_calls_show_only_the_old_digest(mesh: Mesh) -> None:
    shown = mesh.directory.find_by_skill("count", MESH)
    assert [entry.version for entry in shown] == ["1.0.0"]
    assert {await mesh.call(str(number)) for number in range(1, 50)} == {OLD_MARK}
    assert mesh.directory.find_named("word").version == "1.0.0"  # type: ignore[union-attr]


async def test_each_chain_chooses_by_its_hash_and_the_whole_weight_changes_the_lists(mesh: Mesh) -> None:
    mesh.roll(25)
    rollout = mesh.rollouts.rollouts[0]
    for number in range(1, 60):
        assert await mesh.call(str(number)) == rollout.choose(str(number))
        assert await mesh.call(str(number), agent="word") == rollout.choose(str(number))
    mesh.roll(100)
    assert [entry.version for entry in mesh.directory.find_by_skill("count", MESH)] == ["1.1.0"]
    assert await mesh.call("999999") == NEW_MARK


async def test_a_chain_keeps_its_digest_by_its_trace_while_the_weight_rises(mesh: Mesh) -> None:
    mesh.roll(5)
    chain = chain_of(mesh.rollouts.rollouts[0], OLD_MARK)
    await mesh.call(chain)
    sent = mesh.agents.traces[-1]
    assert sent.extension is not None
    assert sent.extension.others[CHOSEN] == {"words": OLD_MARK}
    mesh.roll(100)
    # another process of the hub, which has not seen the beginning of the chain
    mesh.dispatcher.rollouts = fresh = Rollouts(mesh.directory.set_enabled)
    fresh.configure(mesh.rollouts.rollouts, list(mesh.directory.list_held()))
    assert await mesh.call(trace=replace(sent, depth=1)) == OLD_MARK
    claim = replace(sent, id="77", trusted=False)
    assert await mesh.call(trace=claim) == NEW_MARK, "nobody believes an unsigned choice"


async def test_a_run_of_before_the_rollout_keeps_the_old_digest(mesh: Mesh) -> None:
    mesh.roll(100)
    assert await mesh.call("5", principal=RUN, depth=1) == OLD_MARK
    listing_id = agent("word", NEW).id
    assert await mesh.call("8", principal=RUN, depth=0, listing=listing_id) == NEW_MARK, "an exam"
    chosen = TraceExtension(None, {CHOSEN: {"words": NEW_MARK}})
    assert await mesh.call("6", principal=RUN, depth=1, extension=chosen) == NEW_MARK


async def test_a_run_of_a_schedule_begins_a_chain_that_chooses_by_its_hash(mesh: Mesh) -> None:
    mesh.roll(50)
    rollout = mesh.rollouts.rollouts[0]
    for mark in (OLD_MARK, NEW_MARK):
        trace = mesh.rollouts.begin(TraceContext(id=chain_of(rollout, mark), trusted=True))
        assert mesh.rollouts.read_choice(trace) == {"words": mark}
        assert await mesh.call(principal=RUN, trace=replace(mesh.rollouts.mark_run(trace), depth=1)) == mark
    mesh.roll(0, has_failed=True)
    trace = mesh.rollouts.begin(TraceContext(id=chain_of(rollout, NEW_MARK), trusted=True))
    assert mesh.rollouts.read_choice(trace) == {"words": OLD_MARK}


async def test_a_new_digest_that_dies_costs_no_call_and_a_failed_one_loses_its_chains(mesh: Mesh) -> None:
    mesh.roll(100)
    assert await mesh.call("5") == NEW_MARK
    mesh.agents.dead = {NEW_MARK}
    assert await mesh.call("5") == OLD_MARK
    sent = mesh.agents.traces[-1]
    assert sent.extension is not None
    assert sent.extension.others[CHOSEN] == {"words": OLD_MARK}, "the chain goes on with one digest"
    mesh.agents.dead = set()
    assert await mesh.call("6") == NEW_MARK
    mesh.roll(0, has_failed=True)
    assert await mesh.call("5") == OLD_MARK


async def test_a_chain_that_began_before_the_rollout_keeps_the_old_digest(mesh: Mesh) -> None:
    mesh.rollouts.configure([], [])
    await mesh.call("9")
    sent = mesh.agents.traces[-1]
    mesh.roll(100)
    assert await mesh.call(trace=replace(sent, depth=1)) == OLD_MARK
    assert await mesh.call("9") == OLD_MARK, "the same chain"
    assert await mesh.call("10") == NEW_MARK


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_call_that_the_other_digest_answered_counts_for_the_one_that_failed(
    mesh: Mesh, is_trusted: bool
) -> None:
    mesh.roll(100)
    mesh.agents.dead = {NEW_MARK}
    ended: list[Call] = []

    def note(event: Event) -> None:
        if isinstance(event, CallEndedEvent):
            ended.append(event.call)

    mesh.dispatcher.admission.events.subscribe(note)
    assert await mesh.call(trace=TraceContext(id="12", trusted=is_trusted)) == OLD_MARK
    mesh.dispatcher.admission.events.flush()
    (call,) = ended
    assert mesh.rollouts.digest_at_entrance(mesh.rollouts.rollouts[0], call) == NEW_MARK


async def test_an_agent_that_only_the_new_digest_has_is_there_for_its_chains(mesh: Mesh) -> None:
    mesh.directory.upsert(agent("editor", NEW, skill="edit"))
    mesh.roll(50)
    rollout = mesh.rollouts.rollouts[0]
    assert await mesh.call(chain_of(rollout, NEW_MARK), skill="edit", agent="editor") == NEW_MARK
    # a step of a run chooses before it calls
    assert (await mesh.directory.resolve_skill("edit", MESH))[0].name == "editor"
    assert mesh.directory.find_by_skill("edit", MESH) == ()
    mesh.roll(0)
    with pytest.raises(UnknownAgentError):
        await mesh.call(chain_of(rollout, OLD_MARK), skill="edit", agent="editor")


async def test_agents_of_others_that_offer_the_skill_stay_candidates(mesh: Mesh) -> None:
    mesh.directory.upsert(replace(listing("other", "count"), tag="v1"))
    mesh.roll(100)
    assert await mesh.call("5", agent="other") == "none"
    assert await mesh.call("5", agent="word") == NEW_MARK
