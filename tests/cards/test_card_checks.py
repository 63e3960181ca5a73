"""What a card may not hold when it is published or read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.cards.card_checks import MAX_SKILLS, check_card
from retinue.cards.pallet_card import parse_card
from retinue.core.errors import MalformedArtifactError
from retinue.runtime.loading.publishables import read_target

CARD = {"name": "a", "url": "http://127.0.0.1:1", "skills": [{"id": "do", "description": "Does it"}]}


def check(**changes: Any) -> None:
    raw = orjson.dumps({**CARD, **changes})
    check_card(parse_card(raw, reference="a"), raw, reference="a")


@pytest.mark.parametrize("url", ["http://me:secret@example.org", "http://me@example.org/x", "http://@h:1"])
def test_a_url_with_user_information_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(MalformedArtifactError, match="user information") as caught:
        check(url=url)
    assert "secret" not in caught.value.message


def test_user_information_in_another_endpoint_is_refused_too() -> None:
    with pytest.raises(MalformedArtifactError, match="user information"):
        check(retinue={"v": 1, "endpoints": [{"protocol": "a2a", "url": "http://me:x@example.org"}]})


SCRIPTS = [
    "javascript:alert(1)",
    " JavaScript:alert(1)",
    "java\tscript:alert(1)",
    "vbscript:x",
    "data:text/html,x",
]


@pytest.mark.parametrize("url", SCRIPTS)
@pytest.mark.parametrize("escaped", [False, True])
def test_a_url_that_a_browser_would_run_is_refused(url: str, escaped: bool) -> None:
    for changes in (
        {"url": url},
        {"retinue": {"v": 1, "endpoints": [{"protocol": "a2a", "url": url}]}},
        {"documentationUrl": url},
        {"provider": {"organization": "x", "url": url}},
        {"links": ["https://example.org", url]},
    ):
        raw = orjson.dumps({**CARD, **changes})
        if escaped:
            raw = "".join(f"\\u{ord(c):04x}" if c in "jJvd" else c for c in raw.decode()).encode()
        with pytest.raises(MalformedArtifactError, match="runs as a program"):
            check_card(parse_card(raw, reference="a"), raw, reference="a")


def test_words_about_scripts_are_no_url() -> None:
    check(
        description="javascript: a language; data: what it works on",
        documentationUrl="https://x.org/?javascript:1",
    )


@pytest.mark.parametrize("name", ["retinue", "Retinue"])
def test_the_name_of_the_hub_is_refused_unless_an_import_gives_another(name: str) -> None:
    with pytest.raises(MalformedArtifactError, match="which every hub has for itself"):
        check(name=name)
    raw = orjson.dumps({**CARD, "name": name})
    check_card(parse_card(raw, reference="a"), raw, reference="a", keeps_name=False)


def test_an_at_sign_in_a_path_is_no_user() -> None:
    check(url="http://127.0.0.1:1/a@b")


def test_the_number_of_skills_is_limited() -> None:
    check(skills=[{"id": f"s{n}"} for n in range(MAX_SKILLS)])
    with pytest.raises(MalformedArtifactError, match="20,000 entries; make it at most 1,000"):
        check(skills=[{"id": f"s{n}"} for n in range(20_000)])


HIDDEN = ["\x1b[31m", "\x00", "\x08", "\x0c", "\x7f", "\x85", "\x9b", "\u202e", "\u2066", "\U000e0041"]
HIDDEN += ["\u200b", "\u2060", "\u2028", "\u2029", "\ufeff", "\u180e", "\ufff9", "\U000e0100", "\U000e01ef"]


@pytest.mark.parametrize("text", HIDDEN, ids=ascii)
@pytest.mark.parametrize("escaped", [False, True])
def test_control_and_bidirectional_characters_are_refused_wherever_they_stand(
    text: str, escaped: bool
) -> None:
    schema = {"type": "object", "properties": {"x": {"description": f"take {text} care"}}}
    for changes in (
        {"name": f"a{text}"},
        {"description": f"says {text}"},
        {"skills": [{"id": "do", "description": f"line\n{text}"}]},
        {"skills": [{"id": "do", "input_schema": schema}]},
        {"metadata": {"labels": {f"k{text}": "v"}}},
    ):
        raw = orjson.dumps({**CARD, **changes})
        if escaped:
            raw = json.dumps({**CARD, **changes}).encode()
        with pytest.raises(MalformedArtifactError, match=r"holds U\+[0-9A-F]{4,5} .*; remove it"):
            check_card(parse_card(raw, reference="a"), raw, reference="a")


@pytest.mark.parametrize(
    "text", ["tab\tline\r\n", "\\u001b as text", "שלום \u200f", "日本語", "👩\u200d💻", "é"]
)
def test_text_in_any_language_is_taken(text: str) -> None:
    check(description=text)


def test_a_card_file_is_checked_before_it_is_published(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(orjson.dumps({**CARD, "url": "http://me:secret@example.org"}))
    with pytest.raises(MalformedArtifactError, match="user information"):
        read_target(str(file))
