"""``mirror``."""

from __future__ import annotations

from pathlib import Path

import orjson

from tests.cli.conftest import Retinue, publish
from tests.requirements import requirement


@requirement("P-30")
def test_what_is_new_is_copied_and_listed(retinue: Retinue, retinue_home: Path) -> None:
    for name in ("plan-agent", "build-agent"):
        publish(retinue_home, name, orjson.dumps({"name": name, "skills": []}))
    source = str(retinue_home / "registry")
    first = retinue("mirror", source, "./backup", "--repository", "agents/plan")
    assert first.exit_code == 0
    assert first.stdout.startswith("agents/plan:v1@sha256:")
    assert "1 copied, 0 already present" in first.stderr
    second = orjson.loads(retinue("mirror", source, "./backup", "--json").stdout)
    assert [one["repository"] for one in second["copied"]] == ["agents/build"]
    assert (second["unchanged"], second["failed"]) == (1, [])
    assert "build-agent" in retinue("pull", "agents/build", "--registry", "./backup", "-o", "-").stdout


def test_what_cannot_be_copied_is_said_and_seen_in_the_status(retinue: Retinue, retinue_home: Path) -> None:
    publish(retinue_home, "plan-agent", b'{"name": "plan-agent", "skills": []}')
    missing = retinue("mirror", str(retinue_home / "registry"), "./backup", "--repository", "agents/none")
    assert missing.exit_code == 1
    assert "agents/none is not in" in missing.stderr
    shown = retinue("mirror", str(retinue_home / "registry"), "./b", "--repository", "agents/none", "--json")
    assert orjson.loads(shown.stdout)["failed"][0]["type"] == "reference_not_found"


def test_a_folder_that_is_not_there_is_no_empty_registry(retinue: Retinue) -> None:
    refused = retinue("mirror", "./registri", "./backup")
    assert (refused.exit_code, refused.stderr) == (2, "error: FROM: no folder ./registri — check the path\n")
    assert not Path("backup").exists()


def test_a_registry_that_is_down_is_one_line(retinue: Retinue) -> None:
    down = retinue("mirror", "http://user:s3cret@127.0.0.1:1", "./backup")
    assert down.exit_code == 7
    assert "registry http://127.0.0.1:1 is unreachable" in down.stderr
    assert "s3cret" not in down.stderr
    assert len(down.stderr.splitlines()) == 1
