"""``token``."""

from __future__ import annotations

import asyncio
import stat
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from retinue.oci.codec.artifacts import card_artifact, render_artifact
from retinue.oci.codec.manifest import MANIFEST_TYPE
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.storage.mesh_key import mesh_key, parse_join
from retinue.storage.state import State
from retinue.web.issued_tokens import IssuedToken, TokenFile
from tests.cli.conftest import Retinue
from tests.requirements import requirement

COLUMNS = {"id", "name", "kind", "caller", "scopes", "agents", "groups", "created", "last_used", "expires"}


@requirement("S-17")
def test_a_token_is_printed_once_and_listed_without_itself(retinue: Retinue) -> None:
    made = retinue(
        "token",
        "new",
        "--scope",
        "mesh",
        "--name",
        "ci",
        "--expires",
        "30d",
        "--agent",
        "plan-*",
        "--group",
        "ci",
    )
    text = made.stdout.strip()
    assert text.startswith("rtn_")
    assert "it is not shown again" in made.stderr
    assert text not in made.stderr
    listed = retinue("token", "list").stdout
    heading, row = listed.splitlines()
    assert heading.split() == ["ID", "CALLER", "SCOPES", "AGENTS", "CREATED", "LAST", "USED", "EXPIRES"]
    assert row.split()[1:4] == ["token:ci", "mesh", "plan-*"]
    assert text.split("_", 2)[2] not in listed
    (facts,) = orjson.loads(retinue("token", "list", "--json").stdout)["tokens"]
    assert facts.keys() == COLUMNS
    assert facts["groups"] == ["ci"]
    assert facts["last_used"] is None


def test_without_a_scope_it_is_the_least(retinue: Retinue) -> None:
    made = orjson.loads(retinue("token", "new", "--json").stdout)
    assert (made["scopes"], made["expires"], made["caller"]) == (["exposed"], None, f"token:{made['id']}")
    assert made["token"].startswith(f"rtn_{made['id']}_")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scope", "mehs"), "'mehs' is not a scope — did you mean mesh?"),
        (("--scope", "zzzzzzz"), "use one of exposed, mesh, runs_code"),
        (("--scope", "private"), "is not a scope"),
        (("--name", "a b"), "not a valid name of a token"),
        (("--expires", "30"), "'30' is not a duration — write a number with m, h, d or w"),
        (("--expires", "0d"), "is not a duration"),
        (("--expires", "9999w"), "is not a duration"),
        (("--join", "--scope", "mesh"), "--join cannot be combined with --scope"),
        (("--join", "--agent", "x"), "--join cannot be combined with --scope"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(
    retinue: Retinue, retinue_home: Path, arguments: tuple[str, ...], said: str
) -> None:
    refused = retinue("token", "new", *arguments)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (retinue_home / "keys").exists()


def test_a_token_is_taken_back_by_its_id(retinue: Retinue) -> None:
    made = orjson.loads(retinue("token", "new", "--json").stdout)
    wrong = retinue("token", "revoke", made["id"][:-1])
    assert (wrong.exit_code, made["id"] in wrong.stderr) == (3, True)
    assert retinue("token", "revoke", made["id"]).stderr == f"revoked: {made['id']}\n"
    assert "no tokens" in retinue("token", "list").stderr
    assert orjson.loads(retinue("token", "list", "--json").stdout) == {"tokens": []}


@requirement("S-17")
def test_a_join_carries_the_mesh_key_and_a_token_that_is_known_here(
    retinue: Retinue, retinue_home: Path
) -> None:
    join = parse_join(retinue("token", "new", "--join", "--name", "laptop").stdout)
    keys = State(retinue_home).keys
    assert join.key == mesh_key(keys)
    (issued,) = TokenFile(keys).list_all()
    assert join.token.startswith(f"rtn_{issued.id}_")
    assert issued.principal.id == "join:laptop"
    assert stat.S_IMODE((keys / "mesh.key").stat().st_mode) == 0o600
    assert "still has the key of the mesh" in retinue("token", "revoke", issued.id).stderr


async def publish_as(publisher: str | None, state: State, name: str) -> None:
    """Publish a card as the endpoint does for the token of ``publisher``."""
    registry = LayoutRegistry(state.registry)
    card = orjson.dumps({"name": f"{name}-agent", "url": "http://10.0.0.9:8001", "skills": []})
    package = render_artifact(
        card_artifact(f"{name}-agent", card, version="1", skills=[], created=datetime.now(UTC))
    )
    await registry.push_package(f"agents/{name}", "v9", package)
    raw, kind = package.manifest_bytes, MANIFEST_TYPE
    await registry.put_manifest(f"agents/{name}", "v1", raw, kind, publisher=publisher)
    await registry.delete(f"agents/{name}", "v9")


@pytest.fixture
def published(retinue: Retinue, retinue_home: Path) -> IssuedToken:
    """The join token of a laptop, which published the card ``plan-agent``."""
    retinue("token", "new", "--join", "--name", "laptop")
    asyncio.run(publish_as("join:laptop", State(retinue_home), "plan"))
    asyncio.run(publish_as(None, State(retinue_home), "own"))
    (issued,) = TokenFile(State(retinue_home).keys).list_all()
    return issued


def list_published(state_folder: Path) -> list[str]:
    return asyncio.run(LayoutRegistry(State(state_folder).registry).list_repositories())


def test_the_cards_of_a_revoked_join_token_are_removed(
    retinue: Retinue, retinue_home: Path, published: IssuedToken
) -> None:
    revoked = retinue("token", "revoke", published.id)
    assert "removed agents/plan:v1, which it published" in revoked.stderr
    assert list_published(retinue_home) == ["agents/own"]


def test_the_cards_stay_while_another_token_has_the_name(
    retinue: Retinue, retinue_home: Path, published: IssuedToken
) -> None:
    retinue("token", "new", "--join", "--name", "laptop")
    assert "removed" not in retinue("token", "revoke", published.id).stderr
    assert list_published(retinue_home) == ["agents/own", "agents/plan"]


def test_the_cards_stay_if_asked(retinue: Retinue, retinue_home: Path, published: IssuedToken) -> None:
    retinue("token", "revoke", published.id, "--keep-published")
    assert list_published(retinue_home) == ["agents/own", "agents/plan"]


def test_a_damaged_list_is_said_and_left_alone(retinue: Retinue, retinue_home: Path) -> None:
    retinue("token", "new")
    (retinue_home / "keys" / "tokens.json").write_bytes(b"[]")
    for arguments in (("list",), ("new",), ("revoke", "x")):
        failed = retinue("token", *arguments)
        assert failed.exit_code == 8
        assert "tokens.json is damaged" in failed.stderr


def test_a_slip_in_the_name_of_the_command_is_understood(retinue: Retinue) -> None:
    assert "did you mean revoke?" in retinue("token", "revok", "x").stderr
