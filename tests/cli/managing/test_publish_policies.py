"""Policies as artifacts: published, and pulled into the state, where they apply if they are signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.runtime.loading.policy_files import PolicyFiles
from retinue.settings_tables import PolicyTable
from tests.cli.conftest import Retinue

NIGHT = (
    '@id("night") @reason("by day") forbid(principal, action, resource) when { resource.destructive };\r\n'
)


def load(home: Path) -> list[str]:
    table = PolicyTable()
    return [policy.id for policy in PolicyFiles(home, None, table.files).load_all(table).policies]


@pytest.fixture
def published(retinue: Retinue) -> Retinue:
    Path("night-rules.cedar").write_bytes(NIGHT.encode())
    assert retinue("publish", "night-rules.cedar").stdout.startswith("policies/night-rules:v1@sha256:")
    return retinue


def test_policies_are_published_byte_for_byte_and_pulled_into_the_state(
    published: Retinue, retinue_home: Path
) -> None:
    assert published("pull", "policies/night-rules", "-o", "-").stdout_bytes == NIGHT.encode()
    first = published("pull", "policies/night-rules")
    assert first.exit_code == 0, first.output
    assert load(retinue_home) == ["night"]
    # a newer version replaces the file, a file of the owner stays
    (retinue_home / "policies/own.cedar").write_text('@id("own") forbid(principal, action, resource);')
    Path("night-rules.cedar").write_bytes(NIGHT.replace('"night"', '"dusk"').encode())
    assert published("publish", "night-rules.cedar").exit_code == 0
    assert published("pull", "policies/night-rules").stdout == first.stdout
    assert sorted(load(retinue_home)) == ["dusk", "own"]
    assert "policies/night-rules: v1 removed" in published("forget", "policies/night-rules").stdout
    listed = published("agents")
    assert "night" not in listed.stdout + listed.stderr


def test_policies_that_no_trusted_key_has_signed_do_not_apply(published: Retinue, retinue_home: Path) -> None:
    Path("retinue.toml").write_text("[signatures]\nsign = false\n")
    published("publish", "night-rules.cedar")
    refused = published("pull", "policies/night-rules")
    assert refused.exit_code != 0
    assert "policies apply only with a signature that is trusted" in refused.stderr
    assert not (retinue_home / "policies").exists()
    assert published("pull", "policies/night-rules", "-o", "read.cedar").exit_code == 0


def test_a_set_that_is_not_valid_is_neither_published_nor_kept(
    published: Retinue, retinue_home: Path
) -> None:
    Path("bad.cedar").write_text(NIGHT.replace("resource.destructive", "context.args.amount > 5"))
    refusal = published("publish", "bad.cedar").stderr
    assert 'name the action, because lists have no arguments: action == Retinue::Action::"call"' in refusal
    assert "ask for the argument first" in refusal
    (retinue_home / "policies").mkdir()
    (retinue_home / "policies/own.cedar").write_text(NIGHT)
    refused = published("pull", "policies/night-rules")
    assert refused.exit_code != 0
    assert "is in policies/" in refused.stderr
    assert load(retinue_home) == ["night"]
