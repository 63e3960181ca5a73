"""Names that every client takes."""

from __future__ import annotations

import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from retinue.mcp.codec.tools import is_safe, list_agents_of, list_spellings, safe_names, tool_id
from tests.requirements import requirement
from tests.strategies import texts

SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")
colliding = st.text("ab:._ ", max_size=4)
ids = st.lists(colliding | texts | st.text("abc:", min_size=60, max_size=80), unique=True, max_size=12)


@requirement("S-12")
@given(ids)
def test_aliases_are_safe_unique_and_none_is_dropped(names: list[str]) -> None:
    aliases = safe_names(names)
    assert list(aliases) == names
    assert len(set(aliases.values())) == len(names)
    assert all(SAFE.fullmatch(alias) for alias in aliases.values())


@given(ids, st.randoms(use_true_random=False))
def test_aliases_do_not_depend_on_the_order(names: list[str], random: Random) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)
    assert safe_names(shuffled) == safe_names(names)


@given(ids)
def test_a_safe_name_is_its_own_alias(names: list[str]) -> None:
    aliases = safe_names(names)
    assert all(aliases[name] == name for name in names if is_safe(name))


def test_the_seeds_names_become_readable() -> None:
    assert safe_names(["fs:read_file", "git:status"]) == {
        "fs:read_file": "fs_read_file",
        "git:status": "git_status",
    }


def test_names_that_fold_into_one_end_in_a_hash_unless_one_is_that_name() -> None:
    aliases = safe_names(["a:b", "a.b", "a_b"])
    assert aliases["a_b"] == "a_b"
    assert re.fullmatch(r"a_b_[0-9a-f]{8}", aliases["a:b"])
    assert aliases["a:b"] != aliases["a.b"]


def test_a_long_name_is_cut_and_ends_in_a_hash() -> None:
    alias = safe_names(["x" * 65])["x" * 65]
    assert re.fullmatch(r"x{55}_[0-9a-f]{8}", alias)


def test_an_older_major_version_has_its_number_in_the_name() -> None:
    assert tool_id("weather@1", "forecast") == "weather-v1__forecast"
    assert list_spellings("weather@1", "forecast") == (
        "weather-v1__forecast",
        "weather@1__forecast",
        "weather@1.forecast",
    )
    assert list_agents_of("weather-v1") == ("weather-v1", "weather@1")
    assert list_agents_of("weather-vienna") == ("weather-vienna",)


def test_tools_of_other_agents_have_the_agents_name_in_front() -> None:
    assert tool_id(None, "calculate") == "calculate"
    assert tool_id("helpful-agent", "calculate") == "helpful-agent__calculate"
    assert list_spellings("helpful-agent", "calculate") == (
        "helpful-agent__calculate",
        "helpful-agent.calculate",
    )
