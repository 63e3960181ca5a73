"""Profiles: each is a valid set for every caller and for one, and decides as its name says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.policies.cases import parse_cases, run_cases
from retinue.policies.policy_set import load_policies
from retinue.policies.profiles import list_profiles, make_profile
from retinue.runtime.loading.policy_files import PolicyFiles, remove_policies, set_mode, store_policies
from retinue.settings_tables import PolicyTable

NIGHT = "2026-01-07T23:00:00Z"
WRITES: dict[str, Any] = {"call": "bank/pay", "arguments": {}}
CASES: dict[str, list[dict[str, Any]]] = {
    "read-only": [
        {**WRITES, "expect": "deny"},
        {**WRITES, "skill": {"read_only": True}, "expect": "allow"},
        {**WRITES, "action": "list", "expect": "deny"},
    ],
    "ask-before-writes": [
        {**WRITES, "expect": "approve"},
        {**WRITES, "action": "list", "expect": "allow"},
        {**WRITES, "skill": {"read_only": True}, "expect": "allow"},
        {"call": "retinue/orchestrate", "expect": "allow"},
    ],
    "no-egress-of-secrets": [
        {**WRITES, "expect": "allow"},
        {**WRITES, "skill": {"open_world": True}, "expect": "redact"},
        {**WRITES, "skill": {"trust": "imported"}, "expect": "redact"},
    ],
    "office-hours": [
        {**WRITES, "expect": "allow"},
        {**WRITES, "now": NIGHT, "expect": "deny"},
        {**WRITES, "now": NIGHT, "skill": {"read_only": True}, "expect": "allow"},
        # 06:30 in winter and 07:30 in summer, by the clock of Zurich
        {**WRITES, "now": "2026-03-28T05:30:00Z", "timezone": "Europe/Zurich", "expect": "deny"},
        {**WRITES, "now": "2026-03-29T05:30:00Z", "timezone": "Europe/Zurich", "expect": "allow"},
        {**WRITES, "now": "2026-10-24T17:30:00Z", "timezone": "Europe/Zurich", "expect": "deny"},
        {**WRITES, "now": "2026-10-25T17:30:00Z", "timezone": "Europe/Zurich", "expect": "allow"},
    ],
    "budget-per-caller": [{**WRITES, "expect": "limit"}, {"call": "retinue/find_skills", "expect": "allow"}],
}


def test_there_are_these_profiles() -> None:
    assert list(list_profiles()) == sorted(CASES)
    with pytest.raises(InvalidSettingError, match="no profile is named 'readonly'"):
        make_profile("readonly")


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("caller", [None, "token:claude", "bot", 'jwt:"x"', "token:ORIGIN of NAME"])
def test_a_profile_decides_as_its_name_says(name: str, caller: str | None) -> None:
    made = make_profile(name, caller)
    policies = load_policies({made.file: made.text})
    rows = [{**case, **({} if caller is None else {"caller": caller})} for case in CASES[name]]
    if caller is not None:
        # what acts for the caller is bound as well, and nobody else
        first = next(case for case in CASES[name] if case["expect"] != "allow")
        rows.append({**first, "caller": "helper", "origin": caller})
        rows.append({**first, "caller": "token:other", "expect": "allow"})
    problems = [result.problem for result in run_cases(policies, parse_cases("cases", rows))]
    assert problems == [""] * len(rows)
    watched = make_profile(name, caller, is_watched=True)
    assert all(policy.is_watched for policy in load_policies({"w.cedar": watched.text}).policies)


def test_a_profile_is_stored_once_and_the_last_one_leaves_a_file_without_policies(tmp_path: Path) -> None:
    table = PolicyTable()
    files = PolicyFiles(tmp_path, None, table.files)
    made = make_profile("read-only", "token:a")
    path = store_policies(files, table, made.file, made.text)
    assert store_policies(files, table, made.file, made.text) == path
    with pytest.raises(InvalidSettingError, match="it exists"):
        store_policies(files, table, made.file, made.text + "// edited")
    with pytest.raises(InvalidSettingError, match=r"is in policies/copy\.cedar too"):
        store_policies(files, table, "copy.cedar", made.text)
    before = files.look()
    remove_policies(tmp_path, "read-only-token-a")
    policies = files.load(table, before=before)
    assert policies is not None
    assert policies.policies == ()
    with pytest.raises(InvalidSettingError, match="files of this state are: none"):
        remove_policies(tmp_path, "../keys/x")


def test_the_mode_that_the_owner_sets_counts_before_the_settings(tmp_path: Path) -> None:
    table = PolicyTable()
    files = PolicyFiles(tmp_path, None, table.files)
    before = files.look()
    set_mode(tmp_path, "watch")
    assert files.look() != before
    assert files.apply_mode(table).mode == "watch"
    set_mode(tmp_path, None)
    assert files.apply_mode(table) == table
    (tmp_path / "policies/mode").write_text("on")
    with pytest.raises(InvalidSettingError, match="'on' is no mode"):
        files.apply_mode(table)
