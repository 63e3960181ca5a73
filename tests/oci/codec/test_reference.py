"""Names in a registry: references, short names, the choice of a tag."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidReferenceError
from retinue.oci.codec.reference import (
    Reference,
    card_repository,
    choose_tag,
    is_repository,
    parse_reference,
    rank_tag,
    render_reference,
    short_name,
    workflow_repository,
)
from tests.requirements import requirement

DIGEST = "sha256:" + "0123456789abcdef" * 4

parts = st.from_regex(r"[a-z0-9]+((\.|_|__|-{1,3})[a-z0-9]+){0,2}", fullmatch=True)
repositories = st.lists(parts, min_size=1, max_size=4).map("/".join).filter(is_repository)
tags = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
digests = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)
registries = st.sampled_from(
    ["localhost", "127.0.0.1:5000", "http://h:1", "https://r.example.org", "[::1]:80"]
)


@st.composite
def references(draw: st.DrawFn) -> Reference:
    repository = draw(repositories)
    registry = draw(st.none() | registries)
    if registry is None and "/" in repository and "." in repository.split("/")[0]:
        registry = "localhost:5000"  # otherwise the first part would read as the registry
    return Reference(repository, draw(st.none() | tags), draw(st.none() | digests), registry)


@given(references())
def test_a_rendered_reference_reads_back_as_itself(reference: Reference) -> None:
    if reference.repository.startswith("localhost/") and reference.registry is None:
        return
    assert parse_reference(render_reference(reference)) == reference


@given(st.text(max_size=60) | st.text(alphabet="a/:@.-_\n v1", max_size=20))
def test_junk_is_a_reference_or_an_invalid_reference(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidReferenceError:
        return
    path = PurePosixPath(reference.repository)
    assert not path.is_absolute()
    assert not {"..", ".", ""}.intersection(reference.repository.split("/"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("agents/plan:v1", Reference("agents/plan", "v1")),
        ("agents/plan", Reference("agents/plan")),
        ("plan", Reference("plan")),
        (f"agents/plan@{DIGEST}", Reference("agents/plan", digest=DIGEST)),
        (f"agents/plan:v1@{DIGEST}", Reference("agents/plan", "v1", DIGEST)),
        ("agents/team/plan:v1", Reference("agents/team/plan", "v1")),
        ("localhost:5000/agents/plan:v1", Reference("agents/plan", "v1", registry="localhost:5000")),
        ("ghcr.io/o/plan", Reference("o/plan", registry="ghcr.io")),
        ("http://h:5000/agents/plan", Reference("agents/plan", registry="http://h:5000")),
        ("[::1]:5000/agents/plan:v1", Reference("agents/plan", "v1", registry="[::1]:5000")),
    ],
)
def test_references_are_read_as_people_write_them(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":v1",
        "Agents/plan",
        "agents//plan",
        "agents/../plan",
        "../../etc/passwd",
        "/agents/plan",
        "agents/plan/",
        "agents/plan:",
        "agents/plan:-v1",
        "agents/plan:v1\n",
        "agents/plan@",
        "agents/plan@sha256:abc",
        "agents/plan@md5:00",
        "ftp://h/agents/plan",
        "http://",
        "a" * 256,
        "a" * 2000,
    ],
)
def test_what_is_no_reference_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(InvalidReferenceError) as caught:
        parse_reference(text)
    assert caught.value.remedy


@requirement("P-03")
@pytest.mark.parametrize(
    ("name", "short"), [("plan-agent", "plan"), ("plan", "plan"), ("agent", "agent"), ("-agent", "-agent")]
)
def test_the_short_name_drops_a_trailing_agent(name: str, short: str) -> None:
    assert short_name(name) == short


@requirement("P-03")
@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("plan-agent", "agents/plan"),
        ("my_tool", "agents/my_tool"),
        ("My Fine Agent", "agents/my-fine-agent"),
        ("../../etc", "agents/etc"),
        ("-agent", "agents/agent"),
    ],
)
def test_a_card_lives_in_the_repository_of_its_short_name(name: str, repository: str) -> None:
    assert card_repository(name) == repository


@given(st.text(max_size=40))
def test_every_name_has_a_sound_repository_or_none(name: str) -> None:
    for repository_of in (card_repository, workflow_repository):
        with suppress(InvalidReferenceError):
            assert is_repository(repository_of(name))


@requirement("P-17")
@pytest.mark.parametrize(
    ("offered", "wanted", "chosen"),
    [
        (["v1", "v2", "latest"], None, "v2"),
        (["v1", "v10", "v9"], None, "v10"),
        (["1.2.0", "v1.10", "1.9.9"], None, "v1.10"),
        (["v2-rc.1", "v2", "v1"], None, "v2"),
        (["v2-rc.1", "v1"], None, "v2-rc.1"),
        (["main", "latest", "nightly"], None, "latest"),
        (["nightly", "main"], None, "main"),
        (["v1", "v2"], "v1", "v1"),
        (["v1", "v2"], "v3", None),
        ([], None, None),
        (["1.0.0", "v1"], None, "1.0.0"),
    ],
)
def test_the_tag_is_the_wanted_the_highest_the_latest_or_the_first(
    offered: list[str], wanted: str | None, chosen: str | None
) -> None:
    assert choose_tag(offered, wanted) == chosen
    assert choose_tag(reversed(offered), wanted) == chosen


@given(st.lists(tags | st.from_regex(r"v?[0-9]{1,3}(\.[0-9]{1,3}){0,2}(-[0-9a-z.-]{1,8})?", fullmatch=True)))
def test_every_list_of_tags_has_an_order_and_a_choice(offered: list[str]) -> None:
    ranked = sorted(offered, key=rank_tag)
    assert sorted(ranked) == sorted(offered)
    chosen = choose_tag(offered)
    assert chosen in offered if offered else chosen is None
