"""The tokens of a state: kept as hashes, known and forgotten by running processes at once."""

from __future__ import annotations

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from retinue.core.call import Principal
from retinue.core.errors import NotAuthenticatedError, StateDamagedError, UnknownTokenError
from retinue.web.issued_tokens import CHECK_EVERY_S, KnownTokens, TokenFile, TokenGroups
from tests.requirements import requirement

HOST = "127.0.0.1:9000"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def known(keys: Path) -> KnownTokens:
    """As a running process knows them, which looks each time."""
    return KnownTokens(keys, check_every_s=0)


@requirement("S-17")
async def test_a_token_says_who_sends_it_and_what_that_one_may(keys: Path, known: KnownTokens) -> None:
    issued, text = TokenFile(keys).issue(["mesh"], name="ci", agents=["plan-*"])
    found = await known.read(text.encode(), HOST)
    assert found == Principal("token:ci", "token", frozenset({"mesh"}), ("plan-*",))
    assert found == issued.principal


async def test_a_join_token_makes_a_member_of_the_mesh(keys: Path, known: KnownTokens) -> None:
    issued, text = TokenFile(keys).issue(["mesh"], kind="join")
    found = await known.read(text.encode(), HOST)
    assert found is not None
    assert (found.id, found.kind) == (f"join:{issued.id}", "mesh")


def test_the_text_is_kept_nowhere_and_the_files_are_ones_own(keys: Path) -> None:
    issued, text = TokenFile(keys).issue(["exposed"], name="ci")
    secret = text.split("_", 2)[2].encode()
    assert not [path for path in keys.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert issued.digest == sha256(text.encode()).hexdigest()
    assert stat.S_IMODE((keys / "tokens.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert text not in repr(issued)


@pytest.mark.parametrize("change", ["X{}", "{}X", "{}_"])
async def test_what_is_only_nearly_the_token_is_none(keys: Path, known: KnownTokens, change: str) -> None:
    _, text = TokenFile(keys).issue(["mesh"])
    assert await known.read(change.format(text).encode(), HOST) is None
    assert await known.read(text[:-1].encode(), HOST) is None
    assert await known.read(b"\xff\xfe" + text.encode(), HOST) is None


@pytest.mark.parametrize("token", [b"", b"rtn_", b"rtn__", b"rtn_../../x_y", b"rtn_\xff_\xff"])
async def test_nonsense_is_nobody(keys: Path, known: KnownTokens, token: bytes) -> None:
    TokenFile(keys).issue(["mesh"])
    assert await known.read(token, HOST) is None


@requirement("S-17")
async def test_a_running_process_sees_new_and_revoked_tokens(keys: Path, known: KnownTokens) -> None:
    file = TokenFile(keys)
    assert await known.read(b"rtn_00000000_x", HOST) is None
    first, text = file.issue(["mesh"])
    second, other = file.issue(["mesh"])
    assert await known.read(text.encode(), HOST)
    file.revoke(first.id)
    assert await known.read(text.encode(), HOST) is None
    assert await known.read(other.encode(), HOST)
    file.revoke(second.id)
    assert await known.read(other.encode(), HOST) is None
    (keys / "tokens.json").unlink()
    assert await known.read(other.encode(), HOST) is None


async def test_a_new_token_is_known_at_once_and_a_known_one_is_not_looked_up_all_the_time(keys: Path) -> None:
    known = KnownTokens(keys, check_every_s=3600)
    assert await known.read(b"rtn_00000000_x", HOST) is None
    issued, text = TokenFile(keys).issue(["mesh"])
    assert await known.read(text.encode(), HOST)
    TokenFile(keys).revoke(issued.id)
    assert await known.read(text.encode(), HOST), "until it looks again"
    assert CHECK_EVERY_S <= 0.5


async def test_a_token_past_its_time_says_so(keys: Path) -> None:
    now = time.time()
    known = KnownTokens(keys, check_every_s=0, clock=lambda: now)
    issued, text = TokenFile(keys).issue(["mesh"], lifetime_s=60)
    assert await known.read(text.encode(), HOST)
    assert issued.expires_at is not None
    now = issued.expires_at
    with pytest.raises(NotAuthenticatedError, match="expired"):
        await known.read(text.encode(), HOST)


def test_an_expired_token_gives_its_caller_no_groups(keys: Path) -> None:
    now = time.time()
    groups = TokenGroups(keys, clock=lambda: now)
    TokenFile(keys).issue(["mesh"], name="ada", groups=["staff"])
    short, _ = TokenFile(keys).issue(["mesh"], name="ada", groups=["staff", "admin"], lifetime_s=60)
    assert groups.find("token:ada") == ("staff", "admin")
    assert short.expires_at is not None
    now = short.expires_at
    assert groups.find("token:ada") == ("staff",)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"tokens": 3}', b'{"tokens": [{"id": "a"}]}', b"\xff"]
)
async def test_a_damaged_file_lets_nobody_in(keys: Path, known: KnownTokens, content: bytes) -> None:
    file = TokenFile(keys)
    _, text = file.issue(["mesh"])
    assert await known.read(text.encode(), HOST)
    (keys / "tokens.json").write_bytes(content)
    assert await known.read(text.encode(), HOST) is None
    with pytest.raises(StateDamagedError, match=r"tokens\.json is damaged"):
        file.issue(["mesh"])
    assert (keys / "tokens.json").read_bytes() == content


async def test_the_last_use_is_known_to_the_minute_and_costs_one_write_in_it(keys: Path) -> None:
    now = 1_800_000_000.0
    known = KnownTokens(keys, check_every_s=0, clock=lambda: now)
    file = TokenFile(keys)
    issued, text = file.issue(["mesh"])
    assert file.last_used(issued.id) is None
    await known.read(text.encode(), HOST)
    assert file.last_used(issued.id) == now
    now += 30
    await known.read(text.encode(), HOST)
    assert file.last_used(issued.id) == now - 30
    now += 30
    await known.read(text.encode(), HOST)
    assert file.last_used(issued.id) == now
    file.revoke(issued.id)
    assert not list((keys / "used").iterdir())


async def test_a_place_that_cannot_be_written_keeps_nobody_out(keys: Path, known: KnownTokens) -> None:
    _, text = TokenFile(keys).issue(["mesh"])
    (keys / "used").write_bytes(b"in the way")
    assert await known.read(text.encode(), HOST)


def test_an_unknown_id_is_refused_with_the_near_ones(keys: Path) -> None:
    issued, _ = TokenFile(keys).issue(["mesh"])
    with pytest.raises(UnknownTokenError) as caught:
        TokenFile(keys).revoke(issued.id[:-1])
    assert issued.id in caught.value.remedy


def test_commands_at_the_same_time_lose_no_token(keys: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: TokenFile(keys).issue(["mesh"])[0], range(24)))
    assert {one.id for one in TokenFile(keys).list_all()} == {one.id for one in made}
    assert not list(keys.glob(".*.tmp"))
