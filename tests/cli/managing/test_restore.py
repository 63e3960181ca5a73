"""``restore``: what comes back, and the access that does not."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import orjson
import pytest

from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.storage.state import State
from retinue.web.issued_tokens import IssuedToken, TokenFile
from tests.cli.conftest import PLAN_CARD, Retinue, publish
from tests.cli.managing.test_token import publish_as


@pytest.fixture
def backup(retinue: Retinue, retinue_home: Path, tmp_path: Path) -> Path:
    """A backup with two tokens, a login, a card of this machine and one of a laptop."""
    retinue("token", "new", "--name", "ci")
    retinue("token", "new", "--join", "--name", "laptop")
    retinue("keys")
    publish(retinue_home, "plan-agent", orjson.dumps(PLAN_CARD))
    asyncio.run(publish_as("join:laptop", State(retinue_home), "laptop"))
    (retinue_home / "keys" / "imports").mkdir()
    (retinue_home / "keys" / "imports" / "docs.json").write_text("{}")
    (retinue_home / "imports.toml").write_text("")
    folder = tmp_path / "copy"
    assert retinue("backup", str(folder)).exit_code == 0
    return folder


def list_cards(home: Path) -> list[str]:
    return asyncio.run(LayoutRegistry(State(home).registry).list_repositories())


def list_tokens(home: Path) -> dict[str, IssuedToken]:
    return {issued.principal.id: issued for issued in TokenFile(State(home).keys).list_all()}


def test_a_token_that_was_revoked_after_the_backup_stays_revoked(
    retinue: Retinue, retinue_home: Path, backup: Path
) -> None:
    retinue("token", "revoke", list_tokens(retinue_home)["join:laptop"].id)
    (retinue_home / "keys" / "mesh.key").write_text("another key")
    (retinue_home / "keys" / "imports" / "docs.json").unlink()
    outcomes = State(retinue_home).outcomes_file("shop")
    outcomes.parent.mkdir()
    outcomes.write_text("outcomes of steps after the backup")
    restored = retinue("restore", str(backup), "--replace")
    assert restored.exit_code == 0, restored.stderr
    assert "not restored, but kept as they were: keys, imports.toml" in restored.stderr
    assert "removed agents/laptop:v1: no valid token published it" in restored.stderr
    assert list(list_tokens(retinue_home)) == ["token:ci"]
    assert list_cards(retinue_home) == ["agents/plan"]
    assert (retinue_home / "keys" / "mesh.key").read_text() == "another key"
    assert not (retinue_home / "keys" / "imports" / "docs.json").exists()
    assert outcomes.read_text() == "outcomes of steps after the backup"
    (former,) = retinue_home.parent.glob(f"{retinue_home.name}.before-*")
    assert (former / "registry").is_dir()
    files = [path for path in retinue_home.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_state_that_is_not_empty_is_left_alone(retinue: Retinue, retinue_home: Path, backup: Path) -> None:
    refused = retinue("restore", str(backup))
    assert refused.exit_code == 2
    assert "is not empty — move it away and replace it with --replace" in refused.stderr
    assert list_cards(retinue_home) == ["agents/laptop", "agents/plan"]


def test_without_a_state_the_tokens_of_the_backup_are_named(
    retinue: Retinue, retinue_home: Path, backup: Path
) -> None:
    retinue_home.rename(retinue_home.with_name("lost"))
    restored = retinue("restore", str(backup))
    laptop = list_tokens(retinue_home)["join:laptop"].id
    assert f"tokens of the backup are valid again: {list_tokens(retinue_home)['token:ci'].id} (token:ci)" in (
        restored.stderr
    )
    assert f"{laptop} (join:laptop); revoke one: retinue token revoke ID" in restored.stderr
    assert list_cards(retinue_home) == ["agents/laptop", "agents/plan"]


def test_chosen_tokens_are_revoked_with_their_cards(
    retinue: Retinue, retinue_home: Path, backup: Path
) -> None:
    laptop = list_tokens(retinue_home)["join:laptop"].id
    retinue_home.rename(retinue_home.with_name("lost"))
    restored = retinue("restore", str(backup), "--revoke", laptop, "--revoke", "nonsense")
    assert "there is no token nonsense" in restored.stderr
    assert list(list_tokens(retinue_home)) == ["token:ci"]
    assert list_cards(retinue_home) == ["agents/plan"]


def test_all_access_can_be_taken_at_once(retinue: Retinue, retinue_home: Path, backup: Path) -> None:
    flags = ("--keys-of-backup", "--revoke", "all", "--new-keys", "--forget-logins")
    reply = orjson.loads(retinue("restore", str(backup), "--replace", "--json", *flags).stdout)
    assert (reply["kept"], reply["tokens"], reply["removed"]) == ([], [], ["agents/laptop:v1"])
    keys = State(retinue_home).keys
    assert not list((keys / "imports").iterdir())
    assert not (keys / "mesh.key").exists()
    assert not (keys / "card-signing.json").exists()


def test_what_is_no_backup_is_refused_and_a_failure_leaves_the_state(
    retinue: Retinue, retinue_home: Path, backup: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no backup" in retinue("restore", str(empty), "--replace").stderr
    (backup / "runs.db").write_bytes(b"no database" * 1000)
    failed = retinue("restore", str(backup), "--replace")
    assert "runs.db is damaged" in failed.stderr
    assert list_cards(retinue_home) == ["agents/laptop", "agents/plan"]
    assert sorted(list_tokens(retinue_home)) == ["join:laptop", "token:ci"]
