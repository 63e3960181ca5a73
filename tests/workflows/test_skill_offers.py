"""The skills that a step think may call: which ones patterns name, and which ones a search finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from retinue.authoring.local import LocalFirst
from retinue.core.record import AgentRecord, Endpoint, Hints, Listing, SignatureState, Skill
from retinue.core.trust import Trust
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.permissions import Access, AccessRule
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex
from retinue.workflows.caller import SkillOffer
from retinue.workflows.dispatch_caller import DispatchCaller
from retinue.workflows.runs.records import Origin
from tests.mesh.scripted import ScriptedInvoker
from tests.requirements import requirement
from tests.support.memory_source import MemorySource

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
MESH = Origin(frozenset({"mesh"}), "someone")


def make_skill(skill: str, **options: object) -> Skill:
    plain = Skill(skill, f"It can {skill.replace('_', ' ')}.", input_schema=SCHEMA)
    return replace(plain, **options)  # type: ignore[arg-type]


def make_agent(name: str, *skills: Skill | str, version: str = "1.0.0", tag: str | None = None) -> Listing:
    made = tuple(one if isinstance(one, Skill) else make_skill(one) for one in skills)
    endpoint = Endpoint("execute", f"http://{name}:1")
    record = AgentRecord(name, version=version, endpoints=(endpoint,), skills=made)
    return Listing(record, "home", name, tag=tag or version, reachable=True)


@asynccontextmanager
async def open_caller(
    *listings: Listing, trust: Trust = Trust.OWN_MESH, access: Access | None = None
) -> AsyncIterator[tuple[DispatchCaller, MemorySource]]:
    source = MemorySource("home", listings)
    source.trust = trust
    directory = Directory(MemoryListings(), [source], ttl_s=0)
    search = SkillSearch(
        MemoryTextIndex(),
        directory.find_listing,
        find_entry=directory.find_entry,
        find_skill=directory.find_skill,
    )
    directory.subscribe(lambda change: search.note(change.entry.id))
    lookup = LocalFirst(directory, ScriptedInvoker())
    dispatcher = Dispatcher("hub", lookup, lookup.invoker_of)
    try:
        yield (
            DispatchCaller(
                dispatcher,
                lookup,
                dispatcher.admission,
                agent="hub",
                directory=directory,
                access=access,
                search=search,
            ),
            source,
        )
    finally:
        await directory.aclose()


def ids(offers: Sequence[SkillOffer]) -> list[str]:
    return [f"{offer.agent}/{offer.skill}" for offer in offers]


FILES = make_agent("files", "read_file", "write_file", make_skill("plan", listed=False))


@pytest.mark.parametrize(
    ("patterns", "named"),
    [
        (["read_file"], ["files/read_file"]),
        (["files/*"], ["files/read_file", "files/write_file"]),
        (["*_file"], ["files/read_file", "files/write_file", "other/read_file"]),
        (["other/read_file", "*/read_*"], ["other/read_file", "files/read_file"]),
        (["plan"], ["files/plan"]),
        (["nobody/*", "unknown"], []),
    ],
)
async def test_patterns_name_skills_in_their_order_each_once(patterns: list[str], named: list[str]) -> None:
    async with open_caller(FILES, make_agent("other", "read_file")) as (caller, _):
        assert ids(await caller.list_offers(patterns, MESH, 10)) == named


async def test_an_offer_has_what_a_run_needs_to_call_the_skill() -> None:
    hints = Hints(read_only=True)
    listing = make_agent("files", make_skill("read_file", hints=hints, tags=("polling",)))
    async with open_caller(listing) as (caller, _):
        for pattern in ("read_file", "files/read_*"):
            (offer,) = await caller.list_offers([pattern], MESH, 10)
            assert offer.description == "It can read file."
            assert (offer.is_read_only, offer.polls) == (True, True)
            choice = offer.choice
            assert (choice.agent, choice.skill, choice.version) == ("files", "read_file", "1.0.0")
            assert choice.input_schema == SCHEMA
            assert choice.is_repeatable
            assert choice.keeps_keys


async def test_a_limit_cuts_the_list() -> None:
    agents = [make_agent(f"a{n}", "read_file") for n in range(9)]
    async with open_caller(*agents) as (caller, _):
        assert len(await caller.list_offers(["*/*"], MESH, 4)) == 4


async def test_of_the_versions_of_an_agent_a_glob_names_the_newest() -> None:
    old, new = make_agent("files", "read_file"), make_agent("files", "read_file", version="2.0.0")
    async with open_caller(old, new) as (caller, _):
        offers = await caller.list_offers(["files/*"], MESH, 10)
        assert [offer.choice.version for offer in offers] == ["2.0.0"]


async def test_a_caller_gets_the_skills_that_it_sees_and_may_call() -> None:
    code = make_skill("run_code", hints=Hints(runs_code=True))
    shown = make_skill("show_file", visibility="exposed")
    hidden = make_skill("hide_file", visibility="private")
    access = Access({"other": AccessRule(receive=("nobody",))})
    agents = [make_agent("seen", "read_file", code, shown, hidden), make_agent("other", "read_file")]
    async with open_caller(*agents, access=access) as (caller, _):
        patterns = ["*/*", "run_code", "hide_file"]
        assert ids(await caller.list_offers(patterns, replace(MESH, caller="some"), 10)) == [
            "seen/read_file",
            "seen/show_file",
        ]
        exposed = Origin(frozenset({"exposed"}), "some")
        assert ids(await caller.list_offers(patterns, exposed, 10)) == ["seen/show_file"]
        runs_code = Origin(frozenset({"mesh", "runs_code"}), "some")
        assert "seen/run_code" in ids(await caller.list_offers(["run_code"], runs_code, 10))
        assert (
            ids(await caller.find_skills("read a file", replace(MESH, caller="some"), 10))[0]
            == "seen/read_file"
        )
        assert "other/read_file" not in ids(
            await caller.find_skills("read file", replace(MESH, caller="some"), 10)
        )


async def test_a_search_finds_skills_by_words_best_first() -> None:
    async with open_caller(FILES, make_agent("other", "sum_numbers")) as (caller, _):
        assert ids(await caller.find_skills("write a file", MESH, 1)) == ["files/write_file"]
        assert ids(await caller.find_skills("", MESH, 5)) == []
        assert ids(await caller.find_skills("zebra", MESH, 5)) == []


@requirement("T-10")
@pytest.mark.parametrize(
    ("trust", "signature", "is_found"),
    [
        (Trust.OWN_MESH, "none", True),
        (Trust.IMPORTED, "none", True),
        (Trust.NETWORK_MEMBER, "none", False),
        (Trust.NETWORK_MEMBER, "valid", True),
    ],
)
async def test_a_search_finds_no_skill_of_an_agent_that_anybody_may_have_listed(
    trust: Trust, signature: SignatureState, is_found: bool
) -> None:
    listing = replace(make_agent("files", "read_file"), signature=signature)
    async with open_caller(listing, trust=trust) as (caller, _):
        assert bool(await caller.find_skills("read a file", MESH, 5)) is is_found


async def test_a_new_version_of_an_agent_is_another_choice() -> None:
    async with open_caller(make_agent("files", "read_file", tag="x")) as (caller, source):
        (before,) = await caller.list_offers(["read_file"], MESH, 5)
        source.put(make_agent("files", "read_file", version="1.0.1", tag="x"))
        await asyncio.sleep(0)
        now = await caller.choose("read_file", "files", None, MESH.scopes, MESH.caller)
        assert (before.choice.version, now.version) == ("1.0.0", "1.0.1")
