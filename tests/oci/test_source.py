"""A registry as a source: cards found, read once per digest, and one bad repository never hides the rest.

Over an image layout on disk; the same runs against servers in the tests of the registries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.core.errors import (
    DigestMismatchError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryUnreachableError,
    RetinueError,
    SkillNotOfferedError,
)
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.sources import Reading
from retinue.oci.codec.artifacts import Artifact, Guard, NewArtifact
from retinue.oci.codec.bulk import Pulled
from retinue.oci.codec.reference import MAX_VERSIONS, Reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import Registry, forget, publish_card, publish_workflow
from retinue.oci.source import CONCURRENT_READS, FULL_READ_S, TAGS_TTL_S, RegistrySource
from retinue.storage.listing_store import SqliteListings
from tests.requirements import requirement

MESH = frozenset({"exposed", "mesh"})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

PIPELINE = {
    "plan-agent": ("create_plan", 8001),
    "build-agent": ("generate_code", 8002),
    "test-agent": ("review_code", 8003),
}


def card(name: str, skill: str = "create_plan", port: int = 8001, version: str = "1.0.0") -> bytes:
    return orjson.dumps(
        {"name": name, "url": f"http://localhost:{port}", "version": version, "skills": [{"id": skill}]}
    )


async def publish(
    registry: Registry, name: str, raw: bytes | None = None, *, created: datetime = NOON, **options: Any
) -> None:
    content = raw if raw is not None else card(name)
    await publish_card(registry, name, content, version="1.0.0", skills=[], created=created, **options)


async def publish_pipeline(registry: Registry) -> None:
    for name, (skill, port) in PIPELINE.items():
        await publish(registry, name, card(name, skill, port))


def list_keys(reading: Reading) -> list[str]:
    """What is listed, new or not."""
    return sorted([*(listing.key for listing in reading.listings), *(key for key, _ in reading.unchanged)])


@dataclass
class CountingRegistry:
    """A registry that is watched, and fails where told; it bears no stamp, as one over HTTP."""

    inner: Registry
    calls: Counter[str] = field(default_factory=Counter)
    failures: dict[str, RetinueError] = field(default_factory=dict)
    fail_on_pull: bool = False
    at_once: int = 0
    most_at_once: int = 0

    @property
    def name(self) -> str:
        return self.inner.name

    def generation(self) -> None:
        return None

    async def pull_many(self, references: Sequence[Reference]) -> Pulled:
        return {}

    def fail_if_told(self, where: str) -> None:
        if where in self.failures:
            raise self.failures[where]

    async def list_repositories(self) -> list[str]:
        self.calls["catalog"] += 1
        self.fail_if_told("catalog")
        return await self.inner.list_repositories()

    async def list_tags(self, repository: str) -> list[str]:
        self.calls["tags"] += 1
        if not self.fail_on_pull:
            self.fail_if_told(repository)
        return await self.inner.list_tags(repository)

    async def find_digest(self, reference: Reference) -> str | None:
        return await self.inner.find_digest(reference)

    async def pull(self, reference: Reference) -> Artifact:
        return await self.inner.pull(reference)

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        if self.fail_on_pull:
            self.fail_if_told(reference.repository)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        try:
            found = await self.inner.pull_if_changed(reference, known_digest)
        finally:
            self.at_once -= 1
        self.calls["unchanged" if found is None else "content"] += 1
        return found

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        return await self.inner.push(repository, tag, artifact, guard=guard)

    async def delete(self, repository: str, target: str) -> None:
        await self.inner.delete(repository, target)


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRegistry:
    return LayoutRegistry(tmp_path / "registry")


@pytest.fixture
def registry(layout: LayoutRegistry) -> CountingRegistry:
    return CountingRegistry(layout)


@pytest.fixture
async def directory(registry: CountingRegistry) -> AsyncIterator[Directory]:
    await publish_pipeline(registry)
    opened = Directory(MemoryListings(), [RegistrySource("home", registry)])
    yield opened
    await opened.aclose()


@requirement("P-01")
@requirement("P-06")
async def test_each_step_of_the_seed_finds_its_agent_by_skill(directory: Directory) -> None:
    for skill, port in PIPELINE.values():
        (found,) = await directory.resolve_skill(skill, MESH)
        assert found.url == f"http://localhost:{port}"


@requirement("P-01")
async def test_a_second_look_up_reads_no_catalog_and_an_unknown_skill_reads_it_again(
    directory: Directory, registry: CountingRegistry
) -> None:
    await directory.resolve_skill("create_plan", MESH)
    await directory.resolve_skill("review_code", MESH)
    assert registry.calls["catalog"] == 1
    with pytest.raises(SkillNotOfferedError) as missed:
        await directory.resolve_skill("create_plam", MESH)
    assert registry.calls["catalog"] == 2
    assert missed.value.near == ("create_plan",)


@requirement("P-02")
@requirement("P-17")
async def test_a_listing_holds_what_the_registry_said(layout: LayoutRegistry) -> None:
    raw = b'{"name": "plan-agent",\n "url": "http://localhost:8001", "skills": []}'
    await publish(layout, "plan-agent", raw, tag="v3")
    (listing,) = (await RegistrySource("home", layout, now=lambda: NOON).read_all()).listings
    assert (listing.source, listing.key, listing.tag) == ("home", "agents/plan", "v3")
    assert listing.raw == raw
    assert listing.digest == await layout.find_digest(Reference("agents/plan", tag="v3"))
    assert (listing.published_at, listing.fetched_at) == (NOON, NOON)


async def test_an_unchanged_digest_is_not_read_again_and_a_new_one_is(registry: CountingRegistry) -> None:
    await publish_pipeline(registry)
    source = RegistrySource("home", registry)
    first = await source.read_all()
    assert registry.calls["content"] == 3
    again = await source.read_all()
    assert (registry.calls["content"], registry.calls["unchanged"]) == (3, 3)
    assert again.listings == ()
    assert again.unchanged == {(one.key, one.tag): one.digest for one in first.listings}
    await publish(registry, "plan-agent", card("plan-agent", port=9001))
    await source.read_all()
    assert registry.calls["content"] == 4


async def test_after_a_restart_kept_listings_are_only_revalidated(
    registry: CountingRegistry, tmp_path: Path
) -> None:
    await publish_pipeline(registry)
    for _ in range(2):
        store = SqliteListings(tmp_path / "retinue.db")
        source = RegistrySource("home", registry)
        directory = Directory(store, [source])
        await directory.refresh()
        assert len(directory.list_all()) == 3
        store.close()
    assert (registry.calls["content"], registry.calls["unchanged"]) == (3, 3)


@requirement("P-19")
async def test_agents_come_move_and_go_without_a_restart(
    directory: Directory, layout: LayoutRegistry
) -> None:
    (old,) = await directory.resolve_skill("create_plan", MESH)
    later = NOON + timedelta(minutes=1)
    await publish(
        layout, "plan-agent", card("plan-agent", port=9001, version="1.1.0"), tag="v1", created=later
    )
    moved = await directory.reread(old)
    assert moved is not None
    assert (moved.record.url, moved.record.version) == ("http://localhost:9001", "1.1.0")
    await publish(layout, "deploy-agent", card("deploy-agent", "deploy", 8004))
    assert len(await directory.resolve_skill("deploy", MESH)) == 1
    await forget(layout, "deploy-agent")
    await directory.refresh()
    assert directory.find_by_skill("deploy", MESH) == ()


@requirement("P-19")
async def test_a_publish_into_a_layout_is_seen_by_the_very_next_look_up(layout: LayoutRegistry) -> None:
    directory = Directory(MemoryListings(), [RegistrySource("home", layout)])
    await publish(layout, "plan-agent", card("plan-agent", port=8001))
    (found,) = await directory.resolve_skill("create_plan", MESH)
    await publish(layout, "plan-agent", card("plan-agent", port=9001))
    (found,) = await directory.resolve_skill("create_plan", MESH)
    assert found.url == "http://localhost:9001"
    await forget(layout, "plan-agent")
    with pytest.raises(SkillNotOfferedError):
        await directory.resolve_skill("create_plan", MESH)


async def test_an_unchanged_layout_is_not_walked_again_for_a_while(
    layout: LayoutRegistry, tmp_path: Path
) -> None:
    seconds = 100.0
    source = RegistrySource("home", layout, clock=lambda: seconds)
    await publish(layout, "plan-agent")
    assert source.changed()
    first = await source.read_all()
    assert not source.changed()
    again = await source.read_all()
    assert (again.listings, again.unchanged) == ((), {("agents/plan", "v1"): first.listings[0].digest})
    (tmp_path / "registry" / "agents" / "plan").rename(tmp_path / "registry" / "agents" / "moved")
    seconds += FULL_READ_S
    (moved,) = (await source.read_all()).listings
    assert moved.key == "agents/moved"


async def test_a_registry_without_a_stamp_never_says_that_it_changed(registry: CountingRegistry) -> None:
    source = RegistrySource("home", registry)
    await publish(registry, "plan-agent")
    assert not source.changed()


@pytest.mark.parametrize(
    ("tag", "versions"),
    [
        (None, ["1.0.0", "1.10.0", "1.9.0"]),
        ("v1", ["1.0.0"]),
        ("latest", ["0.1.0"]),
        ("v1.10", ["1.10.0"]),
    ],
)
@requirement("P-17")
async def test_the_tags_that_are_versions_are_read_unless_one_is_set(
    layout: LayoutRegistry, tag: str | None, versions: list[str]
) -> None:
    for written, held in (("latest", "0.1.0"), ("v1", "1.0.0"), ("v1.9", "1.9.0"), ("v1.10", "1.10.0")):
        await publish(layout, "x", card("x", version=held), tag=written)
    listings = (await RegistrySource("home", layout, tag=tag).read_all()).listings
    assert [one.record.version for one in listings] == versions


async def test_tags_of_one_digest_are_one_listing_under_the_newest_tag(
    registry: CountingRegistry,
) -> None:
    source = RegistrySource("home", registry)
    content = card("x", version="1.2.0")
    for tag in ("v1", "v1.2", "v1.2.0"):
        await publish(registry, "x", content, tag=tag)
    (listing,) = (await source.read_all()).listings
    assert listing.tag == "v1.2"
    reads = registry.calls["content"]
    again = await source.read_all()
    assert (again.listings, list(again.unchanged)) == ((), [("agents/x", "v1.2")])
    assert registry.calls["content"] == reads
    await publish(registry, "x", card("x", version="1.2.1"), tag="v1.2")
    found = (await source.read_all()).listings
    assert [(one.tag, one.record.version) for one in found] == [("v1.2", "1.2.1"), ("v1.2.0", "1.2.0")]


async def test_only_the_newest_of_very_many_tags_are_read(layout: LayoutRegistry) -> None:
    for number in range(MAX_VERSIONS + 3):
        await publish(layout, "x", card("x", version=f"1.{number}.0"), tag=f"v1.{number}")
    tags = {one.tag for one in (await RegistrySource("home", layout).read_all()).listings}
    assert tags == {f"v1.{number}" for number in range(3, MAX_VERSIONS + 3)}


async def test_nested_and_foreign_places_are_found_by_what_they_hold(layout: LayoutRegistry) -> None:
    await publish(layout, "a", repository="agents/team/plan")
    await publish(layout, "b", repository="elsewhere/b")
    await publish_workflow(layout, "ship", b"name: ship\n", created=NOON)
    image = NewArtifact(b"layer", "application/vnd.oci.image.layer.v1.tar", "", "application/x", {})
    await layout.push("library/debian", "12", image)
    reading = await RegistrySource("home", layout).read_all()
    assert [listing.key for listing in reading.listings] == ["agents/team/plan", "elsewhere/b"]
    assert reading.problems == ()


async def test_bad_repositories_become_problems_and_the_others_are_listed(registry: CountingRegistry) -> None:
    await publish_pipeline(registry)
    await publish(registry, "broken", b"{no json")
    await publish(registry, "nameless", b"{}", repository="agents/nameless")
    await publish(registry, "slow", card("slow"))
    mismatch = DigestMismatchError("agents/slow:v1", "sha256:aa", "sha256:bb")
    registry.failures["agents/slow"] = mismatch
    source = RegistrySource("home", registry)
    for _ in range(2):
        reading = await source.read_all()
        assert list_keys(reading) == ["agents/build", "agents/plan", "agents/test"]
        assert [(p.source, p.key, type(p.error)) for p in reading.problems] == [
            ("home", "agents/broken", MalformedArtifactError),
            ("home", "agents/nameless", MalformedArtifactError),
            ("home", "agents/slow", DigestMismatchError),
        ]
    assert registry.calls["content"] == 5


async def test_a_repository_whose_tags_are_gone_is_neither_listed_nor_a_problem(
    registry: CountingRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_pipeline(registry)
    source = RegistrySource("home", registry)
    await source.read_all()
    with_tags = registry.inner.list_tags

    async def list_tags(repository: str) -> list[str]:
        return [] if repository == "agents/plan" else await with_tags(repository)

    monkeypatch.setattr(registry.inner, "list_tags", list_tags)
    reading = await source.read_all()
    assert list_keys(reading) == ["agents/build", "agents/test"]
    assert reading.problems == ()


async def test_foreign_images_that_are_no_artifact_of_ours_are_passed_over(
    registry: CountingRegistry,
) -> None:
    await publish(registry, "image", repository="library/image")
    await publish(registry, "image", repository="agents/image")
    registry.failures = {
        "library/image": MalformedArtifactError("library/image:v1", "two layers"),
        "agents/image": MalformedArtifactError("agents/image:v1", "two layers"),
    }
    registry.fail_on_pull = True
    reading = await RegistrySource("home", registry).read_all()
    assert reading.listings == ()
    assert [problem.key for problem in reading.problems] == ["agents/image"]


async def test_a_damaged_layout_hides_only_its_own_agent(layout: LayoutRegistry, tmp_path: Path) -> None:
    await publish_pipeline(layout)
    (tmp_path / "registry" / "agents" / "plan" / "index.json").write_bytes(b"{half")
    reading = await RegistrySource("home", layout).read_all()
    assert list_keys(reading) == ["agents/build", "agents/test"]
    assert [problem.key for problem in reading.problems] == ["agents/plan"]


async def test_a_repository_without_the_tag_asked_for_is_named(layout: LayoutRegistry) -> None:
    await publish(layout, "old", tag="v1")
    await publish(layout, "new", tag="v2")
    reading = await RegistrySource("home", layout, tag="v2").read_all()
    assert [listing.key for listing in reading.listings] == ["agents/new"]
    (problem,) = reading.problems
    assert isinstance(problem.error, ReferenceNotFoundError)
    assert "agents/old:v2" in problem.error.message


async def test_a_registry_that_goes_down_keeps_its_agents_in_the_directory(
    directory: Directory, registry: CountingRegistry
) -> None:
    await directory.refresh()
    registry.failures["catalog"] = RegistryUnreachableError("home", "refused")
    await directory.refresh()
    assert len(directory.list_all()) == 3
    with pytest.raises(SkillNotOfferedError) as missed:
        await directory.resolve_skill("deploy", MESH)
    assert missed.value.unasked == ("home",)


async def test_many_repositories_are_read_a_few_at_a_time(registry: CountingRegistry) -> None:
    for number in range(3 * CONCURRENT_READS):
        await publish(registry, f"agent{number}")
    reading = await RegistrySource("home", registry).read_all()
    assert len(reading.listings) == 3 * CONCURRENT_READS
    assert 1 < registry.most_at_once <= CONCURRENT_READS


@requirement("P-30")
async def test_a_revalidation_lists_no_tags_until_their_time_to_live_is_over(
    registry: CountingRegistry,
) -> None:
    seconds = 0.0
    source = RegistrySource("home", registry, clock=lambda: seconds)
    await publish(registry, "x", card("x", version="1.0.0"), tag="v1")
    await source.read_all()
    await publish(registry, "x", card("x", version="1.5.0"), tag="v1")
    await publish(registry, "y")
    moved = (await source.read_all(thorough=False)).listings[0]
    assert moved.record.version == "1.5.0"
    await publish(registry, "x", card("x", version="2.0.0"), tag="v2")
    asked = registry.calls["tags"]
    same = await source.read_all(thorough=False)
    assert (same.unchanged["agents/x", "v1"], registry.calls["tags"]) == (moved.digest, asked)
    seconds += TAGS_TTL_S
    (better,) = (await source.read_all(thorough=False)).listings
    assert (better.tag, better.record.version) == ("v2", "2.0.0")


async def test_a_full_reading_and_that_of_one_key_see_a_better_tag_at_once(
    registry: CountingRegistry,
) -> None:
    source = RegistrySource("home", registry)
    await publish(registry, "x", tag="v1")
    await source.read_all()
    await publish(registry, "x", tag="v2")
    assert [one.tag for one in await source.read_key("agents/x")] == ["v2"]
    await publish(registry, "x", tag="v3")
    (listing,) = (await source.read_all()).listings
    assert listing.tag == "v3"


async def test_a_revalidation_looks_for_another_tag_when_the_chosen_one_is_gone(
    registry: CountingRegistry,
) -> None:
    source = RegistrySource("home", registry)
    await publish(registry, "x", tag="v1")
    await publish(registry, "x", card("x", version="2.0.0"), tag="v2")
    await publish(registry, "y")
    await source.read_all()
    await registry.delete("agents/x", "v2")
    await forget(registry, "y")
    reading = await source.read_all(thorough=False)
    assert reading.listings == ()
    assert list(reading.unchanged) == [("agents/x", "v1")]


async def test_a_tag_that_is_set_is_read_without_listing_any(registry: CountingRegistry) -> None:
    await publish_pipeline(registry)
    reading = await RegistrySource("home", registry, tag="v1").read_all()
    assert len(reading.listings) == 3
    publishing = registry.calls["tags"]
    await RegistrySource("home", registry, tag="v1").read_all()
    assert registry.calls["tags"] == publishing


async def test_a_miss_lists_the_tags_that_a_revalidation_did_not(registry: CountingRegistry) -> None:
    directory = Directory(MemoryListings(), [RegistrySource("home", registry)])
    await publish(registry, "x", tag="v1")
    await directory.refresh()
    await publish(registry, "x", card("x", "deploy"), tag="v2")
    await directory.refresh(thorough=False)
    assert directory.find_by_skill("deploy", MESH) == ()
    (found,) = await directory.resolve_skill("deploy", MESH)
    assert found.tag == "v2"
    await directory.aclose()


async def test_what_is_new_is_given_by_and_by_and_then_told_as_unchanged(registry: CountingRegistry) -> None:
    await publish_pipeline(registry)
    source = RegistrySource("home", registry, given_at_once=2)
    early_keys: list[str] = []
    reading = await source.read_all(lambda batch: early_keys.extend(listing.key for listing in batch))
    assert len(early_keys) == 2
    assert sorted([*early_keys, *(listing.key for listing in reading.listings)]) == [
        "agents/build",
        "agents/plan",
        "agents/test",
    ]
    assert reading.unchanged.keys() == {(key, "v1") for key in early_keys}


async def test_one_key_is_read_whole_whether_it_changed_or_not(registry: CountingRegistry) -> None:
    await publish_pipeline(registry)
    source = RegistrySource("home", registry)
    (first, *_) = (await source.read_all()).listings
    (again,) = await source.read_key(first.key)
    assert again.raw == first.raw
    assert (await source.read_all()).unchanged[first.key, "v1"] == first.digest


async def test_a_repository_that_holds_no_card_any_more_is_not_told_as_unchanged(
    layout: LayoutRegistry,
) -> None:
    source = RegistrySource("home", layout)
    await publish(layout, "b", repository="elsewhere/b")
    await source.read_all()
    image = NewArtifact(b"layer", "application/vnd.oci.image.layer.v1.tar", "", "application/x", {})
    await layout.push("elsewhere/b", "v1", image)
    assert await source.read_key("elsewhere/b") == ()
    assert list_keys(await source.read_all()) == []
