"""Which answers are waited out and how long; the index artifact; uploads in chunks."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import MalformedArtifactError, RegistryRefusedError
from retinue.oci.codec import flows as pushing
from retinue.oci.codec.artifacts import Artifact, NewArtifact, parse_envelope, render_artifact
from retinue.oci.codec.catalog import INDEX, index_artifact, parse_index_artifact
from retinue.oci.codec.reference import digest_of, is_repository
from retinue.oci.codec.wire import MAX_RETRY_AFTER_S, is_transient, parse_retry_after
from tests.oci.codec.replies import Reply, feed
from tests.requirements import requirement

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
repositories = st.from_regex(r"(agents|workflows)/[a-z0-9]{1,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        ("999999999999", MAX_RETRY_AFTER_S),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0),
        ("Sat, 21 Nov 2099 11:00:00 -0000", MAX_RETRY_AFTER_S),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
    ],
)
def test_the_time_to_wait_is_read_as_seconds_or_date(text: str, seconds: float | None) -> None:
    assert parse_retry_after({"retry-after": text}, now=NOON) == seconds


@given(st.text(max_size=40))
def test_no_time_to_wait_breaks_the_reading(text: str) -> None:
    found = parse_retry_after({"retry-after": text}, now=NOON)
    assert found is None or 0 <= found <= MAX_RETRY_AFTER_S


def test_only_a_refusal_to_begin_is_transient_for_what_must_not_happen_twice() -> None:
    passing = [status for status in range(200, 600) if is_transient(status, repeatable=True)]
    assert passing == [408, 429, 500, 502, 503, 504]
    assert [status for status in passing if is_transient(status, repeatable=False)] == [429]


def _catalog(names: object) -> bytes:
    return orjson.dumps({"repositories": names})


def _pulled(new: NewArtifact) -> Artifact:
    package = render_artifact(new)
    return parse_envelope(package.manifest_bytes, where="x").open(new.content)


@requirement("P-30")
@given(st.lists(repositories, max_size=6))
def test_an_index_reads_back_sorted_and_once_each(names: list[str]) -> None:
    artifact = _pulled(index_artifact(names, created=NOON))
    assert artifact.form == "index"
    assert parse_index_artifact(artifact) == sorted(set(names))


def test_an_index_has_the_form_of_a_catalog() -> None:
    assert str(INDEX) == "agents/index:latest"
    assert index_artifact(["b", "a"], created=NOON).content == b'{"repositories":["a","b"]}'


@given(
    st.binary(max_size=30)
    | st.lists(st.text(max_size=9) | st.integers(-9, 9)).map(lambda v: orjson.dumps({"repositories": v}))
)
def test_no_index_breaks_the_reading(content: bytes) -> None:
    new = index_artifact([], created=NOON)
    artifact = _pulled(NewArtifact(content, new.media_type, new.title, new.artifact_type))
    with suppress(MalformedArtifactError):
        assert all(is_repository(name) for name in parse_index_artifact(artifact))


def test_a_card_in_the_place_of_the_index_is_none() -> None:
    with pytest.raises(MalformedArtifactError, match="instead of an index"):
        parse_index_artifact(_pulled(NewArtifact(b"{}", "application/json", "index_agent_card.json", "x")))


CONTENT = bytes(range(10))
PLACE = {"location": "/up?state=1"}


def _push(*replies: Reply, chunk_bytes: int = 4) -> list[tuple[str, str, str | None, bytes | None]]:
    flow = pushing.push_blob("a", digest_of(CONTENT), CONTENT, chunk_bytes=chunk_bytes)
    _, asked = feed(flow, (404, {}, b""), *replies)
    return [(one.method, one.url, one.headers.get("content-range"), one.body) for one in asked[2:]]


def test_large_content_goes_in_chunks_each_to_where_the_last_one_said() -> None:
    sent = _push(
        (202, PLACE, b""),
        (202, {"location": "http://registry:5000/up?state=2", "range": "0-3"}, b""),
        (202, {"location": "/up?state=3", "range": "bytes=0-7"}, b""),
        (202, {"location": "/up?state=4"}, b""),
        (201, {}, b""),
    )
    base, end = "http://registry:5000/up?state=", f"4&digest={digest_of(CONTENT).replace(':', '%3A')}"
    assert sent == [
        ("PATCH", base + "1", "0-3", CONTENT[:4]),
        ("PATCH", base + "2", "4-7", CONTENT[4:8]),
        ("PATCH", base + "3", "8-9", CONTENT[8:]),
        ("PUT", base + end, None, b""),
    ]


def test_a_registry_may_ask_for_larger_chunks() -> None:
    sent = _push((202, {**PLACE, "oci-chunk-min-length": "8"}, b""), *[(202, PLACE, b"")] * 2, (201, {}, b""))
    assert [one[2] for one in sent] == ["0-7", "8-9", None]


def test_a_registry_that_kept_less_than_was_sent_is_found_out() -> None:
    with pytest.raises(RegistryRefusedError, match="stored bytes 0-1 of an upload instead of 0-3"):
        _push((202, PLACE, b""), (202, {**PLACE, "range": "0-1"}, b""))


@pytest.mark.parametrize("status", [200, 307])
def test_what_the_registry_has_anywhere_is_not_sent(status: int) -> None:
    _, asked = feed(
        pushing.push_blob("a", digest_of(CONTENT), CONTENT), (status, {"location": "http://s3"}, b"")
    )
    assert [one.method for one in asked] == ["HEAD"]
