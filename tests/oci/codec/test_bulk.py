"""Many manifests in one request: what is asked, what is answered, and what becomes of bad answers."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import (
    DigestMismatchError,
    InvalidReferenceError,
    MalformedArtifactError,
    RetinueError,
    TooLargeError,
)
from retinue.oci.codec.artifacts import CARD_ARTIFACT_TYPE, Artifact, card_artifact, render_artifact
from retinue.oci.codec.bulk import (
    BULK_TYPE,
    MAX_MANIFESTS_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_WANTED,
    MAX_WANTED_BYTES,
    Pulled,
    parse_manifests,
    parse_wanted,
    pull_many,
    render_manifests,
    render_wanted,
)
from retinue.oci.codec.exchange import RegistryRequest, Response
from retinue.oci.codec.manifest import EMPTY_CONFIG, Manifest, describe, render_manifest
from retinue.oci.codec.reference import MAX_REPOSITORY_CHARS, Reference, digest_of
from tests.strategies import json_values, texts

CARD = b'{"name": "plan-agent"}'
PACKAGE = render_artifact(
    card_artifact("plan-agent", CARD, version="1", skills=[], created=datetime(2026, 1, 1, tzinfo=UTC))
)
RAW = PACKAGE.manifest_bytes
PLAN = Reference("agents/plan", tag="v1", digest=PACKAGE.digest)
BUILD = Reference("agents/build", tag="v1", digest=PACKAGE.digest)
DIGEST = digest_of(b"")
repositories = st.from_regex(r"[a-z]{1,9}(/[a-z]{1,9})?", fullmatch=True)
digests = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)


def _feed(
    flow: Generator[RegistryRequest, Response, Pulled], response: Response
) -> tuple[RegistryRequest, Pulled]:
    request = next(flow)
    with pytest.raises(StopIteration) as finished:
        flow.send(response)
    pulled: Pulled = finished.value.value
    return request, pulled


def _pull(body: bytes, *references: Reference, status: int = 200, media_type: str = BULK_TYPE) -> Pulled:
    response = Response(status, {"content-type": media_type}, body, "http://registry:5000/v2/_manifests")
    return _feed(pull_many(references or (PLAN,)), response)[1]


@given(st.dictionaries(repositories, digests))
def test_a_request_is_read_as_it_was_rendered(wanted: dict[str, str]) -> None:
    read = parse_wanted(render_wanted(wanted))
    assert list(read.items()) == list(wanted.items())


@given(st.dictionaries(repositories, st.none() | texts.map(str.encode)))
def test_an_answer_is_read_as_it_was_rendered(found: dict[str, bytes | None]) -> None:
    assert parse_manifests(render_manifests(found), found) == found


@given(st.binary(max_size=40) | json_values.map(orjson.dumps))
def test_no_body_breaks_either_reader(body: bytes) -> None:
    with suppress(RetinueError):
        parse_wanted(body)
    assert isinstance(parse_manifests(body, {"agents/plan"}), dict)


@given(json_values)
def test_no_value_under_manifests_breaks_either_reader(value: object) -> None:
    body = orjson.dumps({"manifests": value})
    with suppress(RetinueError):
        parse_wanted(body)
    assert parse_manifests(body, {"agents/plan"}) == {}


def test_a_manifest_that_is_no_text_is_left_to_be_pulled_alone() -> None:
    assert parse_manifests(render_manifests({"a": b"\xff", "b": b"{}"}), {"a", "b"}) == {
        "a": None,
        "b": b"{}",
    }


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{half", MalformedArtifactError),
        (b"[]", MalformedArtifactError),
        (b"{}", MalformedArtifactError),
        (b'{"manifests": ["agents/plan"]}', MalformedArtifactError),
        (b'{"manifests": {"agents/plan": 1}}', MalformedArtifactError),
        (render_wanted({"agents/plan": "v1"}), InvalidReferenceError),
        (render_wanted({"../plan": DIGEST}), InvalidReferenceError),
        (render_wanted({f"a{n}": DIGEST for n in range(MAX_WANTED + 1)}), TooLargeError),
    ],
)
def test_a_request_that_is_none_is_refused(body: bytes, kind: type[RetinueError]) -> None:
    with pytest.raises(kind):
        parse_wanted(body)


def test_the_caps_leave_room_for_the_longest_names_and_for_quotes() -> None:
    names = [f"{number:03}".rjust(MAX_REPOSITORY_CHARS, "a") for number in range(MAX_WANTED)]
    assert len(render_wanted(dict.fromkeys(names, DIGEST))) <= MAX_WANTED_BYTES
    quotes = b'"' * (MAX_MANIFESTS_BYTES // MAX_WANTED)
    assert len(render_manifests(dict.fromkeys(names, quotes))) <= MAX_RESPONSE_BYTES


def test_many_artifacts_come_in_one_request_that_may_be_repeated() -> None:
    answer = render_manifests({"agents/plan": RAW, "agents/build": RAW})
    response = Response(200, {"content-type": BULK_TYPE}, answer, "http://registry:5000/v2/_manifests")
    request, pulled = _feed(pull_many([PLAN, BUILD]), response)
    assert (request.method, request.url, request.repeatable) == ("POST", "/v2/_manifests", True)
    assert request.max_response_bytes == MAX_RESPONSE_BYTES
    assert parse_wanted(request.body or b"") == {one.repository: one.digest for one in (PLAN, BUILD)}
    for name in ("agents/plan", "agents/build"):
        artifact = pulled[name]
        assert isinstance(artifact, Artifact)
        assert (artifact.content, artifact.digest, artifact.tag) == (CARD, PACKAGE.digest, "v1")


def test_a_wrong_digest_is_the_problem_of_that_one_alone() -> None:
    pulled = _pull(render_manifests({"agents/plan": RAW + b" ", "agents/build": RAW}), PLAN, BUILD)
    assert isinstance(pulled["agents/build"], Artifact)
    error = pulled["agents/plan"]
    assert isinstance(error, DigestMismatchError)
    assert str(error).startswith("agents/plan:v1: content has digest")


def test_a_manifest_of_something_else_is_named_as_a_single_pull_names_it() -> None:
    raw = render_manifest(Manifest(EMPTY_CONFIG, (), artifact_type=CARD_ARTIFACT_TYPE))
    pulled = _pull(render_manifests({"agents/plan": raw}), Reference("agents/plan", digest=digest_of(raw)))
    assert isinstance(pulled["agents/plan"], MalformedArtifactError)


def test_content_that_is_not_inline_is_left_to_a_single_pull() -> None:
    layer = describe(CARD, "application/json", title="plan_agent_card.json")
    raw = render_manifest(Manifest(EMPTY_CONFIG, (layer,)))
    reference = Reference("agents/plan", tag="v1", digest=digest_of(raw))
    assert _pull(render_manifests({"agents/plan": raw}), reference) == {"agents/plan": None}


def test_what_was_not_asked_for_is_passed_over_and_what_is_left_out_is_not_told() -> None:
    pulled = _pull(render_manifests({"agents/other": RAW, "agents/build": None}), PLAN, BUILD)
    assert pulled == {"agents/build": None}


def test_of_a_name_that_comes_twice_only_one_counts() -> None:
    text = orjson.dumps(RAW.decode()).decode()
    pulled = _pull(f'{{"manifests": {{"agents/plan": "x", "agents/plan": {text}}}}}'.encode())
    assert isinstance(pulled["agents/plan"], Artifact)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 500, 501])
def test_a_registry_that_does_not_answer_such_a_request_is_pulled_from_one_by_one(status: int) -> None:
    assert _pull(render_manifests({"agents/plan": RAW}), status=status) == {}


@pytest.mark.parametrize(
    "body", [render_manifests({"agents/plan": RAW})[:-9], b"", b"[]", b'{"manifests": 3}']
)
def test_an_answer_that_cannot_be_read_is_none(body: bytes) -> None:
    assert _pull(body) == {}


def test_an_answer_of_another_kind_is_none() -> None:
    assert _pull(render_manifests({"agents/plan": RAW}), media_type="application/json") == {}
