"""The exchanges with a registry, fed by hand: what is asked, and what becomes of each answer."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import (
    DigestMismatchError,
    InvalidReferenceError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryRefusedError,
    RetinueError,
)
from retinue.oci.codec import flows
from retinue.oci.codec import flows as pushing
from retinue.oci.codec.artifacts import card_artifact, render_artifact
from retinue.oci.codec.catalog import Catalog
from retinue.oci.codec.exchange import Response
from retinue.oci.codec.manifest import Manifest, describe, render_manifest
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.codec.wire import parse_error, parse_next_link, render_error, render_next_link
from tests.oci.codec.replies import BASE, Reply, feed
from tests.requirements import requirement

CARD = b'{"name": "plan-agent"}'
NEW = card_artifact("plan-agent", CARD, version="1", skills=["a"], created=datetime(2026, 1, 1, tzinfo=UTC))
PACKAGE = render_artifact(NEW)
PLAIN = render_manifest(
    Manifest(
        describe(b"{}", "application/vnd.unknown.config.v1+json"),
        (describe(CARD, "application/json", title="plan_agent_card.json"),),
    )
)
PLAN = Reference("agents/plan", "v1")
odd_headers = st.dictionaries(
    st.sampled_from(["location", "link", "docker-content-digest"]),
    st.text(max_size=9) | st.sampled_from(["//[", "http://[x", '<//[>; rel="next"', "<?>; rel=next"]),
)


def _json(value: object, **headers: str) -> Reply:
    return 200, headers, orjson.dumps(value)


@requirement("P-04")
def test_a_card_with_inline_content_is_pulled_in_one_request() -> None:
    artifact, asked = feed(flows.pull(PLAN), (200, {}, PACKAGE.manifest_bytes))
    assert artifact is not None
    assert (artifact.content, artifact.title, artifact.digest) == (
        CARD,
        "plan_agent_card.json",
        PACKAGE.digest,
    )
    assert [(r.method, r.url) for r in asked] == [("GET", "/v2/agents/plan/manifests/v1")]


@requirement("P-04")
def test_a_card_pushed_by_oras_is_pulled_by_manifest_and_blob() -> None:
    artifact, asked = feed(flows.pull(PLAN), (200, {}, PLAIN), (200, {}, CARD))
    assert artifact is not None
    assert artifact.form == "card"
    assert artifact.content == CARD
    assert asked[1].url == f"/v2/agents/plan/blobs/{digest_of(CARD)}"


def test_a_blob_kept_elsewhere_is_followed_there() -> None:
    elsewhere = (307, {"location": "https://store.example/x?sig=1"}, b"")
    artifact, asked = feed(flows.pull(PLAN), (200, {}, PLAIN), elsewhere, (200, {}, CARD))
    assert artifact is not None
    assert asked[2].url == "https://store.example/x?sig=1"


def test_a_blob_that_moves_for_ever_is_refused() -> None:
    moved = (307, {"location": "/elsewhere"}, b"")
    with pytest.raises(RegistryRefusedError, match="307"):
        feed(flows.pull(PLAN), (200, {}, PLAIN), moved, moved, moved, moved)


def test_a_forged_blob_is_refused() -> None:
    with pytest.raises(DigestMismatchError):
        feed(flows.pull(PLAN), (200, {}, PLAIN), (200, {}, b"forged"))


def test_a_missing_blob_is_a_malformed_artifact() -> None:
    with pytest.raises(MalformedArtifactError, match="missing"):
        feed(flows.pull(PLAN), (200, {}, PLAIN), (404, {}, b""))


def test_a_forged_manifest_is_refused_when_asked_by_digest() -> None:
    with pytest.raises(DigestMismatchError):
        feed(flows.pull(Reference("agents/plan", digest="sha256:" + "0" * 64)), (200, {}, PLAIN))


@requirement("P-17")
def test_without_a_tag_the_highest_version_is_pulled() -> None:
    tags = _json({"name": "agents/plan", "tags": ["v1", "latest", "v2"]})
    artifact, asked = feed(flows.pull(Reference("agents/plan")), tags, (200, {}, PLAIN), (200, {}, CARD))
    assert artifact is not None
    assert artifact.tag == "v2"
    assert asked[1].url.endswith("/manifests/v2")


@pytest.mark.parametrize("tags", [(404, {}, b""), _json({"tags": None}), _json({"tags": []})])
def test_a_repository_without_tags_holds_nothing(tags: Reply) -> None:
    with pytest.raises(ReferenceNotFoundError, match="http://registry:5000"):
        feed(flows.pull(Reference("agents/plan")), tags)
    assert feed(flows.find_digest(Reference("agents/plan")), tags)[0] is None


@pytest.mark.parametrize("answer", [(304, {}, b""), (200, {}, PACKAGE.manifest_bytes)])
def test_a_known_digest_is_asked_conditionally_and_not_read_again(answer: Reply) -> None:
    artifact, asked = feed(flows.pull(PLAN, known_digest=PACKAGE.digest), answer)
    assert artifact is None
    assert asked[0].headers["if-none-match"] == f'"{PACKAGE.digest}"'


def test_push_sends_what_is_missing_and_then_the_manifest() -> None:
    digest, asked = feed(
        pushing.push("agents/plan", "v1", NEW),
        (200, {}, b""),
        (404, {}, b""),
        (202, {"location": "/v2/agents/plan/blobs/uploads/7?_state=a%3D"}, b""),
        (201, {}, b""),
        (201, {"docker-content-digest": PACKAGE.digest}, b""),
    )
    assert digest == PACKAGE.digest
    assert [r.method for r in asked] == ["HEAD", "HEAD", "POST", "PUT", "PUT"]
    card_digest = digest_of(CARD).replace(":", "%3A")
    assert asked[3].url == f"{BASE}/v2/agents/plan/blobs/uploads/7?_state=a%3D&digest={card_digest}"
    assert asked[3].body == CARD
    assert asked[4].headers["content-type"] == "application/vnd.oci.image.manifest.v1+json"
    assert asked[4].body == PACKAGE.manifest_bytes


@pytest.mark.parametrize(
    ("location", "upload"),
    [
        ("http://other:1/up", "http://other:1/up?digest="),
        ("/up", f"{BASE}/up?digest="),
        ("next", f"{BASE}/v2/agents/plan/blobs/uploads/next?digest="),
    ],
)
def test_an_upload_goes_where_the_registry_says(location: str, upload: str) -> None:
    flow = pushing.push("agents/plan", "v1", NEW)
    next(flow)
    post = flow.send(Response(404, {}, b"", BASE + "/v2/agents/plan/blobs/x"))
    put = flow.send(Response(202, {"location": location}, b"", BASE + post.url))
    assert put.url.startswith(upload)


def test_an_upload_without_a_place_to_go_is_refused() -> None:
    with pytest.raises(RegistryRefusedError, match="no Location"):
        feed(pushing.push("agents/plan", "v1", NEW), (404, {}, b""), (202, {}, b""))


def test_a_registry_that_stores_another_manifest_is_found_out() -> None:
    stored = (201, {"docker-content-digest": "sha256:" + "0" * 64}, b"")
    with pytest.raises(DigestMismatchError):
        feed(pushing.push("agents/plan", "v1", NEW), (200, {}, b""), (200, {}, b""), stored)


def test_a_refusal_tells_the_status_and_the_registrys_reason() -> None:
    refusal: Reply = (401, {}, render_error("UNSUPPORTED", "authentication  required\nnow"))
    with pytest.raises(RegistryRefusedError, match="401: UNSUPPORTED: authentication required now") as caught:
        feed(flows.read_catalog(), refusal)
    assert caught.value.registry == BASE


@requirement("P-02")
def test_the_catalog_is_read_page_by_page() -> None:
    names, asked = feed(
        flows.read_catalog(),
        _json({"repositories": ["b", "a"]}, link='</v2/_catalog?last=b&n=2>; rel="next"'),
        _json({"repositories": ["c", 7]}),
    )
    assert names == Catalog(("a", "b", "c"))
    assert [r.url for r in asked] == ["/v2/_catalog?n=1000", f"{BASE}/v2/_catalog?last=b&n=2"]


def test_paging_stays_with_the_registry_and_ends_even_if_it_runs_in_a_circle() -> None:
    elsewhere = 'http://evil.example/v2/_catalog?last=a>; rel="next"'
    page = _json({"repositories": ["a"]}, link=f"<{elsewhere}")
    _, asked = feed(flows.read_catalog(), page, page)
    assert asked[1].url == f"{BASE}/v2/_catalog?last=a"


def test_a_registry_with_smaller_pages_chooses_their_size() -> None:
    refusal: Reply = (400, {}, render_error("PAGINATION_NUMBER_INVALID", "n"))
    names, asked = feed(flows.read_catalog(), refusal, _json({"repositories": ["a"]}))
    assert names == Catalog(("a",))
    assert asked[1].url == "/v2/_catalog"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"repositories": 3}', b'"x"'])
def test_a_catalog_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RegistryRefusedError, match="no JSON list"):
        feed(flows.read_catalog(), (200, {}, body))


def test_the_digest_of_a_tag_costs_one_head() -> None:
    found, asked = feed(flows.find_digest(PLAN), (200, {"docker-content-digest": PACKAGE.digest}, b""))
    assert found == PACKAGE.digest
    assert [r.method for r in asked] == ["HEAD"]


def test_the_digest_is_worked_out_where_the_registry_does_not_tell_it() -> None:
    found, _ = feed(flows.find_digest(PLAN), (200, {}, b""), (200, {}, PACKAGE.manifest_bytes))
    assert found == PACKAGE.digest


def test_a_tag_is_deleted_by_its_digest_where_tags_cannot_be() -> None:
    _, asked = feed(
        flows.delete(PLAN),
        (400, {}, b""),
        (200, {"docker-content-digest": PACKAGE.digest}, b""),
        (202, {}, b""),
    )
    assert asked[2].url == f"/v2/agents/plan/manifests/{PACKAGE.digest}"


@pytest.mark.parametrize("replies", [[(404, {}, b"")], [(405, {}, b""), (404, {}, b"")]])
def test_deleting_what_is_not_there_says_so(replies: list[Reply]) -> None:
    with pytest.raises(ReferenceNotFoundError):
        feed(flows.delete(PLAN), *replies)


def test_deleting_wants_a_tag_or_digest() -> None:
    with pytest.raises(InvalidReferenceError):
        feed(flows.delete(Reference("agents/plan")))


@given(st.integers(100, 599), st.binary(max_size=40), odd_headers)
def test_no_answer_makes_a_flow_fail_with_anything_but_our_errors(
    status: int, body: bytes, headers: dict[str, str]
) -> None:
    push = pushing.push("a", "v1", NEW)
    for flow in (flows.read_catalog(), flows.pull(PLAN), push, flows.delete(PLAN)):
        request = next(flow)
        try:
            for _ in range(10):
                request = flow.send(Response(status, headers, body, BASE + request.url))
        except (StopIteration, RetinueError):
            continue


@given(st.binary(max_size=80))
def test_any_error_body_gives_one_line(body: bytes) -> None:
    code, message = parse_error(body)
    assert "\n" not in message
    assert isinstance(code, str)


def test_an_error_body_reads_back() -> None:
    assert parse_error(render_error("BLOB_UNKNOWN", "no such blob", {"digest": "x"})) == (
        "BLOB_UNKNOWN",
        "no such blob",
    )


@given(st.from_regex(r"/v2/[a-z?=&%0-9]{0,20}", fullmatch=True))
def test_a_link_to_the_next_page_reads_back(target: str) -> None:
    assert parse_next_link(render_next_link(target)) == target


@pytest.mark.parametrize("header", [None, "", "</a>; rel=prev", "<>; rel=next", "nonsense", "</a"])
def test_without_a_next_link_the_page_is_the_last(header: str | None) -> None:
    assert parse_next_link(header) is None


@pytest.mark.parametrize("header", ["</a>;rel=next", '</z>; rel="prev", </a>; rel="next"; n=1'])
def test_the_next_link_is_found_among_others(header: str) -> None:
    assert parse_next_link(header) == "/a"
