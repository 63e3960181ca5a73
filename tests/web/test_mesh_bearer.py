"""The key of the mesh, the token that proves it, and how another machine gets it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidSettingError, NotAuthenticatedError, StateDamagedError
from retinue.storage.mesh_key import (
    Join,
    accept_join,
    check_joined,
    joined_token,
    key_id,
    mesh_key,
    parse_join,
    render_join,
)
from retinue.web.mesh_tokens import MESH_MEMBER, MeshBearer
from tests.requirements import requirement

KEY = b"0123456789abcdef" * 4
URL = "http://agents.example.org:8001/x"
HOST = "agents.example.org:8001"


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def test_the_key_is_made_once_and_is_ones_own(tmp_path: Path) -> None:
    key = mesh_key(tmp_path / "keys")
    path = tmp_path / "keys" / "mesh.key"
    assert path.read_bytes() == key == mesh_key(tmp_path / "keys")
    assert len(bytes.fromhex(key.decode())) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key_id(key) not in key.decode()


@pytest.mark.parametrize("content", ["", "zz", "0" * 31, "ä" * 32])
def test_a_damaged_key_is_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "mesh.key").write_text(content)
    with pytest.raises(StateDamagedError):
        mesh_key(tmp_path)
    assert (tmp_path / "mesh.key").read_text() == content


@pytest.mark.parametrize("url", [URL, "http://127.0.0.1:8001"])
def test_agents_of_the_mesh_get_a_token_for_their_url_and_cards_of_other_sources_collect_none(
    url: str,
) -> None:
    clock = Clock()
    bearer = MeshBearer(KEY, {"home", "team"}, clock=clock)
    assert bearer.token_for("home", url) == bearer.token_for("team", url) == bearer.make(url)
    assert bearer.token_for("http://registry.example.org", url) is None


async def test_a_member_of_the_mesh_is_known_where_it_calls_and_nowhere_else() -> None:
    clock = Clock()
    token = MeshBearer(KEY, clock=clock).make(URL).encode()
    reader = MeshBearer(KEY, clock=clock)
    assert await reader.read(token, HOST) == MESH_MEMBER
    with pytest.raises(NotAuthenticatedError, match="another host or port"):
        await reader.read(token, "agents.example.org:8002")
    with pytest.raises(NotAuthenticatedError, match="another mesh"):
        await MeshBearer(bytes(32), clock=clock).read(token, HOST)
    assert await reader.read(b"rtn_00000000_x", HOST) is None


async def test_a_token_of_the_mesh_is_good_for_a_minute_and_made_anew_in_time() -> None:
    clock = Clock()
    bearer = MeshBearer(KEY, clock=clock, monotonic=clock)
    first = bearer.make(URL)
    clock.now += 29
    assert bearer.make(URL) == first
    clock.now += 2
    assert bearer.make(URL) != first
    clock.now += 60
    with pytest.raises(NotAuthenticatedError, match="has expired"):
        await bearer.read(first.encode(), HOST)
    clock.now -= 3600
    with pytest.raises(NotAuthenticatedError, match="is of the future"):
        await bearer.read(first.encode(), HOST)


@pytest.mark.parametrize("step_s", [-3600, -120, -45, 20, 120, 3600])
async def test_a_token_is_made_anew_at_once_when_the_clock_was_set(step_s: float) -> None:
    """One that was made at what is now another time would be refused: as expired, or from the future."""
    clock, monotonic = Clock(), Clock()
    bearer, reader = (MeshBearer(KEY, clock=clock, monotonic=monotonic) for _ in range(2))
    first = bearer.make(URL)
    clock.now += step_s
    second = bearer.make(URL)
    assert second != first
    assert await reader.read(second.encode(), HOST) == MESH_MEMBER
    clock.now += 29
    monotonic.now += 29
    assert bearer.make(URL) == second


@given(st.binary(max_size=60))
async def test_nonsense_is_refused_in_one_way(rest: bytes) -> None:
    with pytest.raises(NotAuthenticatedError):
        await MeshBearer(KEY).read(b"rtnm_" + rest, HOST)


@requirement("S-17")
def test_a_join_carries_the_token_and_the_key(tmp_path: Path) -> None:
    text = render_join(Join("rtn_1_secret", KEY))
    assert parse_join(f" {text}\n") == Join("rtn_1_secret", KEY)
    accept_join(tmp_path, "http://hub.example.org:9000/", parse_join(text))
    assert mesh_key(tmp_path) == KEY
    assert joined_token(tmp_path, "http://HUB.example.org:9000") == "rtn_1_secret"
    assert joined_token(tmp_path, "http://hub.example.org:9001") is None
    assert joined_token(tmp_path, "http://hub.example.org:9000@evil.example.org") is None
    assert stat.S_IMODE((tmp_path / "joined.json").stat().st_mode) == 0o600
    accept_join(tmp_path, "http://other.example.org:9000", Join("rtn_2_secret", KEY))
    assert joined_token(tmp_path, "http://hub.example.org:9000") == "rtn_1_secret"


def test_whoever_joins_another_mesh_has_left_the_hubs_of_the_first(tmp_path: Path) -> None:
    accept_join(tmp_path, "http://first:9000", Join("rtn_1_secret", KEY))
    (tmp_path / "mesh.key").unlink()
    accept_join(tmp_path, "http://second:9000", Join("rtn_2_secret", KEY[::-1]))
    assert joined_token(tmp_path, "http://first:9000") is None
    check_joined(tmp_path, "http://second:9000")


@pytest.mark.parametrize(("url", "said"), [("http://hub:9000", "has not joined"), ("hub:9000", "not a url")])
def test_a_hub_that_was_not_joined_is_said_with_what_to_do(tmp_path: Path, url: str, said: str) -> None:
    with pytest.raises(InvalidSettingError, match=said) as caught:
        check_joined(tmp_path, url)
    assert "retinue token new --join" in caught.value.remedy or "http://hub:9000" in caught.value.remedy


def test_a_state_of_another_mesh_stays_what_it_is(tmp_path: Path) -> None:
    key = mesh_key(tmp_path)
    with pytest.raises(InvalidSettingError, match="another mesh"):
        accept_join(tmp_path, "http://hub:9000", Join("rtn_1_secret", KEY))
    assert mesh_key(tmp_path) == key
    assert joined_token(tmp_path, "http://hub:9000") is None


@pytest.mark.parametrize("cut", [0, 5, 20, -1, -30])
def test_a_join_that_was_not_copied_whole_is_refused_without_a_word_of_it(cut: int) -> None:
    text = render_join(Join("rtn_1_secret", KEY))[:cut]
    with pytest.raises(InvalidSettingError) as caught:
        parse_join(text)
    assert not text[5:] or text[5:] not in str(caught.value)


def test_a_damaged_list_of_hubs_is_said(tmp_path: Path) -> None:
    (tmp_path / "joined.json").write_bytes(b"[]")
    with pytest.raises(StateDamagedError, match="join again"):
        raise_remedy(tmp_path)


def raise_remedy(keys: Path) -> None:
    try:
        joined_token(keys, "http://hub:9000")
    except StateDamagedError as error:
        raise StateDamagedError("joined.json", error.remedy, remedy="") from error


async def test_a_token_for_the_advertised_address_is_good_although_a_proxy_replaced_the_host() -> None:
    bearer = MeshBearer(KEY, own_place="Mesh.example")
    token = bearer.make("https://mesh.example/agents/one").encode()
    assert await bearer.read(token, "127.0.0.1:8001") is not None
    with pytest.raises(NotAuthenticatedError, match="another host"):
        await MeshBearer(KEY, own_place="other.example").read(token, "127.0.0.1:8001")
    with pytest.raises(NotAuthenticatedError, match="another host"):
        await MeshBearer(KEY).read(token, "")
