"""What registries tell of themselves: manifests that came or went, and nothing else."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidRequestError, ParseError, RequestError, TooLargeError
from retinue.oci.codec.notifications import MAX_EVENTS, RegistryEvent, parse_events
from tests.requirements import requirement

DIGEST = "sha256:" + "a" * 64


def event(action: str = "push", **target: Any) -> dict[str, Any]:
    """One event as docker-registry 2.8 sends it."""
    url = f"http://127.0.0.1:5051/v2/agents/plan/manifests/{DIGEST}"
    about = {"repository": "agents/plan", "digest": DIGEST, "tag": "v1", "url": url, **target}
    return {
        "id": "1",
        "timestamp": "2026-11-21T12:00:00Z",
        "action": action,
        "target": {key: value for key, value in about.items() if value is not None},
        "request": {"host": "127.0.0.1:5051", "method": "PUT"},
        "source": {"addr": "machine:5051"},
    }


def parse(*events: Any) -> tuple[RegistryEvent, ...]:
    return parse_events(orjson.dumps({"events": events}))


@requirement("P-30")
def test_a_push_tells_repository_tag_digest_and_host() -> None:
    hosts = frozenset({"127.0.0.1:5051"})
    assert parse(event()) == (RegistryEvent("push", "agents/plan", "v1", DIGEST, hosts),)


def test_a_deletion_tells_no_tag() -> None:
    (found,) = parse(event("delete", tag=None, url=None))
    assert (found.action, found.tag, found.digest) == ("delete", None, DIGEST)


@pytest.mark.parametrize(
    "told",
    [
        event("pull"),
        event("mount"),
        event(url=f"http://127.0.0.1:5051/v2/agents/plan/blobs/{DIGEST}"),
        event(repository="../etc"),
        event(repository=7),
        event(repository=None),
        {"action": "push", "target": "agents/plan"},
        {"action": ["push"], "target": {"repository": "agents/plan"}},
        "push",
        None,
    ],
)
def test_what_changes_no_tag_is_left_out_and_keeps_nothing_else_out(told: Any) -> None:
    assert [found.repository for found in parse(told, event(repository="agents/build"))] == ["agents/build"]


@pytest.mark.parametrize("body", [b"[]", b'"events"', b"{}", b'{"events": {}}'])
def test_json_that_is_no_envelope_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_events(body)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 5000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_events(body)


def test_too_many_events_are_refused() -> None:
    assert len(parse(*[event()] * MAX_EVENTS)) == MAX_EVENTS
    with pytest.raises(TooLargeError):
        parse(*[event()] * (MAX_EVENTS + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["events", "action", "target", "repository", "url", "tag", "request", "host"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=4) | JSON)
def test_no_envelope_makes_the_reader_fail_otherwise(events: Any) -> None:
    try:
        found = parse_events(orjson.dumps({"events": events}))
    except RequestError:
        return
    assert all(one.repository for one in found)
