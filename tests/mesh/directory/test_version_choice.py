"""Which version of an agent takes a call, and what each version is called."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from retinue.core.errors import VersionConflictError
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.routing import order_candidates
from retinue.mesh.directory.versions import is_version_named, major_of
from tests.requirements import requirement

MESH = frozenset({"mesh", "exposed"})


def version(
    number: str,
    *,
    tag: str | None = None,
    name: str = "weather",
    source: str = "home",
    weight: int = 100,
    deprecated: bool | str = False,
) -> Listing:
    record = AgentRecord(
        name,
        version=number,
        endpoints=(Endpoint("execute", f"http://{name}-{number}.{source}"),),
        skills=(Skill("forecast"),),
        weight=weight,
        deprecated=deprecated,
    )
    return Listing(record, source, f"agents/{name}", tag=tag or f"v{number}", digest=f"sha256:{number}")


def directory_of(*listings: Listing) -> Directory:
    directory = Directory(MemoryListings())
    for one in listings:
        directory.upsert(one)
    return directory


async def choose(
    directory: Directory, wanted: str | None = None, agent: str | None = None
) -> list[str | None]:
    found = await directory.resolve_skill("forecast", MESH, version_range=wanted, agent=agent)
    return [one.version for one in order_candidates(found, skill_id="forecast")]


@requirement("P-30")
async def test_without_a_range_the_newest_stable_version_takes_the_call() -> None:
    directory = directory_of(version("1.2.0"), version("2.0.0"), version("1.10.0"), version("3.0.0-rc.1"))
    assert (await choose(directory))[0] == "2.0.0"
    assert len(directory.list_entries()) == 4
    for _ in range(5):
        assert (await choose(directory, agent="weather"))[0] == "2.0.0"


@requirement("P-30")
async def test_a_range_or_a_version_in_the_name_chooses_among_what_fits() -> None:
    directory = directory_of(version("0.9.0"), version("1.2.0"), version("2.0.0"), version("2.1.0-rc.1"))
    assert await choose(directory, "<2") == ["1.2.0", "0.9.0"]
    assert await choose(directory, ">=2.1.0-rc.0") == ["2.1.0-rc.1"]
    assert await choose(directory, agent="weather@1") == ["1.2.0", "0.9.0"]
    assert await choose(directory, agent="weather@2") == ["2.0.0", "2.1.0-rc.1"]
    assert await choose(directory, agent="weather@v1.2.0") == ["1.2.0"]
    with pytest.raises(VersionConflictError):
        await choose(directory, ">=3")


async def test_an_older_version_takes_the_calls_of_one_that_does_not_answer() -> None:
    newest = version("2.0.0")
    directory = directory_of(version("1.0.0"), newest)
    directory.mark_unreachable(newest, "refused")
    assert await choose(directory) == ["1.0.0", "2.0.0"]
    named = directory.find_named("weather")
    assert named is not None
    assert named.version == "1.0.0"
    directory.mark_reachable(newest)
    assert await choose(directory) == ["2.0.0", "1.0.0"]


async def test_a_degraded_newest_version_is_still_the_newest() -> None:
    newest = version("2.0.0")
    directory = directory_of(version("1.0.0"), newest)
    directory.mark_degraded(newest, "slow")
    assert (await choose(directory))[0] == "2.0.0"


async def test_a_deprecated_agent_is_behind_all_others() -> None:
    directory = directory_of(version("2.0.0", deprecated="use 1.x"), version("1.0.0"))
    assert await choose(directory) == ["1.0.0", "2.0.0"]
    other = version("1.0.0", name="zebra")
    directory = directory_of(version("1.0.0", deprecated=True), other)
    found = await directory.resolve_skill("forecast", MESH)
    assert [one.name for one in order_candidates(found)] == ["zebra", "weather"]
    assert await choose(directory_of(version("1.0.0", deprecated=True))) == ["1.0.0"]


async def test_a_version_that_becomes_deprecated_loses_its_place_at_once() -> None:
    directory = directory_of(version("1.0.0"), version("1.0.0", name="zebra"))
    assert (await directory.resolve_skill("forecast", MESH))[0].name == "weather"
    directory.upsert(replace(version("1.0.0", deprecated=True), digest="sha256:later"))
    assert (await directory.resolve_skill("forecast", MESH))[0].name == "zebra"


async def test_the_next_older_stable_version_gets_what_the_weight_leaves() -> None:
    directory = directory_of(
        version("2.0.0", weight=30), version("1.1.0"), version("1.0.0"), version("2.1.0-rc.1", weight=0)
    )
    counts = Counter([(await choose(directory))[0] for _ in range(2000)])
    assert set(counts) == {"2.0.0", "1.1.0"}
    # 2000 draws of 30 per cent are outside of this once in 10^9
    assert 470 <= counts["2.0.0"] <= 730
    assert {(await choose(directory, ">=2"))[0] for _ in range(20)} == {"2.0.0"}
    among = Counter(
        [
            (await choose(directory_of(version("1.1.0", weight=50), version("1.0.0")), "<2"))[0]
            for _ in range(60)
        ]
    )
    assert set(among) == {"1.1.0", "1.0.0"}


async def test_versions_of_one_agent_do_not_share_the_calls_of_a_strategy() -> None:
    directory = directory_of(version("1.0.0"), version("2.0.0"), version("1.0.0", name="zebra"))
    found = await directory.resolve_skill("forecast", MESH)
    rotated = order_candidates(found, lambda candidates, _: list(reversed(candidates)))
    assert [(one.name, one.version) for one in rotated] == [
        ("zebra", "1.0.0"),
        ("weather", "2.0.0"),
        ("weather", "1.0.0"),
    ]


def test_each_version_has_a_name_that_means_it() -> None:
    directory = directory_of(version("0.4.0"), version("1.1.0"), version("2.0.0"), version("3.0.0-rc.1"))
    names = {one.version: directory.name_of(one) for one in directory.list_entries()}
    assert names == {
        "0.4.0": "weather@0.4.0",
        "1.1.0": "weather@1.1.0",
        "2.0.0": "weather",
        "3.0.0-rc.1": "weather@3",
    }
    for number, name in names.items():
        named = directory.find_named(name)
        assert named is not None
        assert named.version == number


def test_agents_of_two_sources_are_named_by_their_source_as_before() -> None:
    directory = directory_of(version("1.0.0"), version("2.0.0", source="far"))
    assert [directory.name_of(one) for one in directory.list_entries()] == ["weather@far", "weather@home"]


@pytest.mark.parametrize(
    ("number", "mark", "named"),
    [
        ("1.2.3", "1", True),
        ("0.2.3", "1", True),
        (None, "1", True),
        ("2.0.0", "1", False),
        ("2.0.0", "v2", True),
        ("2.0.1", "2.0", True),
        ("2.1.0", "2.0", False),
        ("1.0.0", "home", False),
        ("1.0.0", "", False),
    ],
)
def test_a_version_in_a_name_is_a_major_version_or_the_beginning_of_one(
    number: str | None, mark: str, named: bool
) -> None:
    assert is_version_named(number, mark) is named


def test_0_and_1_count_as_one_major_version() -> None:
    assert [major_of(one) for one in ("0.1.0", "1.9", None, "nightly", "2.0.0", "v11")] == [1, 1, 1, 1, 2, 11]
