"""Links to artifacts as objects and as texts."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.artifact_links import (
    LINK_SCHEMA,
    clean_name,
    find_digests,
    find_links,
    is_media_type,
    read_link,
    render_link,
)
from retinue.core.errors import InvalidRequestError

DIGEST = f"sha256:{'ab' * 32}"
digests = st.binary(min_size=32, max_size=32).map(lambda raw: f"sha256:{raw.hex()}")


@pytest.mark.parametrize(
    "link",
    [
        {"artifact": DIGEST},
        {"artifact": DIGEST, "size": 3, "media_type": "text/plain", "name": "a.txt"},
        {"artifact": DIGEST, "size": -1, "media_type": "nonsense\r\n", "name": 7},
        DIGEST,
        f"artifact:{DIGEST}",
        f" artifact:{DIGEST}\n",
        f"https://hub.example:9000/artifacts/{DIGEST}",
    ],
)
def test_a_link_is_read_in_each_of_its_forms(link: Any) -> None:
    assert read_link(link)[0] == DIGEST


@pytest.mark.parametrize(
    "link",
    [
        None,
        7,
        "",
        [],
        {},
        {"artifact": None},
        {"artifact": "sha256:ab"},
        {"digest": DIGEST},
        DIGEST.upper(),
        f"{DIGEST}0",
        f"file:///artifacts/{DIGEST}",
        f"artifact:{DIGEST}/../../x",
    ],
)
def test_other_values_are_refused(link: Any) -> None:
    with pytest.raises(InvalidRequestError, match="link to an artifact"):
        read_link(link)


@given(digests, st.integers(0, 2**53), st.none() | st.text(max_size=200))
def test_a_rendered_link_fits_its_schema_and_is_read_again(digest: str, size: int, name: str | None) -> None:
    plain = None if name is None else clean_name(name)
    link = render_link(digest, size, "text/plain", plain)
    assert jsonschema_rs.validator_for(dict(LINK_SCHEMA)).is_valid(link)
    assert read_link(orjson.loads(orjson.dumps(link))) == (digest, size, "text/plain", plain)
    assert list(find_links({"a": [link, {"b": link}]})) == [link]
    assert find_digests(orjson.dumps(["x", {"y": link}])) == {digest}


@given(st.text(max_size=300))
def test_a_name_never_leaves_its_folder(text: str) -> None:
    name = clean_name(text)
    assert name is None or (
        0 < len(name) <= 100 and "/" not in name and "\\" not in name and name.strip(" .") == name
    )
    assert name is None or all(character.isprintable() for character in name)
    assert name is None or clean_name(name) == name


def test_links_in_texts_are_found_and_other_digests_are_not() -> None:
    text = f"see artifact:{DIGEST} or http://hub/artifacts/{DIGEST[:-1]}0, image@sha256:{'cd' * 32}"
    assert find_digests(orjson.dumps(text)) == {DIGEST, f"{DIGEST[:-1]}0"}
    assert find_digests(b"null") == frozenset()


def test_media_types_have_a_type_and_a_subtype() -> None:
    assert is_media_type("application/vnd.ms-excel+zip")
    assert is_media_type("text/plain; charset=utf-8")
    assert not is_media_type("text")
    assert not is_media_type("text/html; charset=utf-8; x=<script>")
