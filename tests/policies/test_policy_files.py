"""Files of policies: none is lost without an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from retinue.cli.program import program
from retinue.core.errors import InvalidSettingError
from retinue.runtime.loading import policy_files
from retinue.runtime.loading.policy_files import PolicyFiles, check_policies, explain_install
from retinue.settings_tables import PolicyTable

TABLE = PolicyTable()


def write(folder: Path, name: str, policy_id: str = "", groups: str = "") -> None:
    """Write a policy, and the groups beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f'@id("{policy_id or name}") forbid(principal, action, resource);', "utf-8")
    if groups:
        (folder / "groups.yaml").write_text(groups, "utf-8")


@pytest.fixture
def files(tmp_path: Path) -> PolicyFiles:
    return PolicyFiles(tmp_path / "state", tmp_path / "project", TABLE.files)


def test_files_of_one_name_in_state_and_project_are_both_loaded(files: PolicyFiles, tmp_path: Path) -> None:
    write(tmp_path / "state/policies", "a.cedar", "owner")
    write(tmp_path / "project/policies", "a.cedar", "project")
    policies = files.load(TABLE)
    assert policies is not None
    assert {policy.id: policy.file for policy in policies.policies} == {
        "owner": "policies/a.cedar",
        "project": "project:policies/a.cedar",
    }


def test_a_group_that_two_files_define_is_refused(files: PolicyFiles, tmp_path: Path) -> None:
    write(tmp_path / "state/policies", "a.cedar", "owner", groups="guests: ['*']")
    write(tmp_path / "project/policies", "b.cedar", "project", groups="guests: []")
    with pytest.raises(InvalidSettingError, match="the group 'guests' is in another file too"):
        files.load(TABLE)


@pytest.mark.parametrize("kind", ["unreadable", "unmounted"])
@pytest.mark.parametrize("root", ["state", "project"])
def test_a_folder_of_policies_that_cannot_be_listed_is_an_error(
    files: PolicyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, kind: str
) -> None:
    folder = tmp_path / root / "policies"
    if kind == "unmounted":
        folder.parent.mkdir()
        folder.symlink_to(tmp_path / "volume")
    else:
        write(folder, "a.cedar")
        scandir = os.scandir

        def refuse(path: Any = ".") -> Any:
            if Path(path) == folder:
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InvalidSettingError, match="policies"):
        files.load(TABLE)
    # a process that looks for changes goes on
    assert files.look() == files.look() != ()


def test_a_folder_below_a_glob_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PolicyFiles(tmp_path / "state", tmp_path / "project", ("rules/**/*.cedar", "agents/*/*.cedar"))
    write(tmp_path / "project/rules/a/b", "a.cedar")
    write(tmp_path / "project/agents/bank", "b.cedar")
    assert [path.name for path in files.list_files()] == ["b.cedar", "a.cedar"]
    scandir = os.scandir
    for folder in ("rules", "rules/a/b", "agents", "agents/bank"):

        def refuse(path: Any = ".", folder: str = folder) -> Any:
            if Path(path) == tmp_path / "project" / folder:
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(InvalidSettingError, match=folder):
            files.list_files()


def test_a_project_that_cannot_be_listed_has_its_folder_of_policies(
    files: PolicyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "project/policies", "a.cedar")
    scandir = os.scandir

    def refuse(path: Any = ".") -> Any:
        if Path(path) == tmp_path / "project":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert [path.name for path in files.list_files()] == ["a.cedar"]


@pytest.mark.parametrize("glob", ["policies/*.cedar", "policies/a.cedar"])
def test_files_of_a_folder_that_cannot_be_entered_are_listed_so_that_reading_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, glob: str
) -> None:
    write(tmp_path / "project/policies", "a.cedar", groups="guests: []")

    (tmp_path / "state/policies").mkdir(parents=True)

    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", refuse)
    monkeypatch.setattr(os, "lstat", refuse)
    listed = PolicyFiles(tmp_path / "state", tmp_path / "project", (glob,)).list_files()
    assert [path.name for path in listed] == ["a.cedar", "groups.yaml"]


def test_groups_that_are_a_broken_link_are_an_error(files: PolicyFiles, tmp_path: Path) -> None:
    write(tmp_path / "state/policies", "a.cedar")
    (tmp_path / "state/policies/groups.yaml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidSettingError, match=r"groups\.yaml"):
        files.load(TABLE)


@pytest.mark.parametrize("root", ["state", "project"])
def test_files_that_were_in_force_and_are_gone_are_an_error(
    files: PolicyFiles, tmp_path: Path, root: str
) -> None:
    for name in ("state", "project"):
        write(tmp_path / name / "policies", f"{name}.cedar")
    before = files.look()
    (tmp_path / root / "policies" / f"{root}.cedar").unlink()
    with pytest.raises(InvalidSettingError, match="had policies, and has none now"):
        files.load(TABLE, before=before)
    assert files.load(TABLE.model_copy(update={"mode": "off"}), before=before) is None
    (tmp_path / root / "policies" / "none.cedar").write_text("// no policies\n", "utf-8")
    policies = files.load(TABLE, before=before)
    assert policies is not None
    assert len(policies.policies) == 1


def test_the_doctor_tells_of_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "policies").symlink_to(tmp_path / "volume")
    for mode in ("enforce", "off"):
        (row,) = check_policies(TABLE.model_copy(update={"mode": mode}), tmp_path)
        assert row.status == "fail"


def test_files_that_become_readable_again_count_as_changed(files: PolicyFiles, tmp_path: Path) -> None:
    write(tmp_path / "state/policies", "a.cedar")
    file = tmp_path / "state/policies/a.cedar"
    file.chmod(0)
    before = files.look()
    file.chmod(0o600)
    assert files.look() != before


@pytest.mark.parametrize(
    ("platform", "has_wheel"),
    [
        (("Linux", "x86_64", "glibc"), True),
        (("Darwin", "arm64", ""), True),
        (("Windows", "AMD64", ""), True),
        (("Linux", "x86_64", "musl"), False),
        (("Linux", "riscv64", "glibc"), False),
        (("FreeBSD", "amd64", ""), False),
    ],
)
def test_a_platform_without_a_wheel_of_the_engine_is_told(
    platform: tuple[str, str, str], has_wheel: bool
) -> None:
    remedy = explain_install(*platform)
    assert remedy.endswith("pip install 'retinue[policy]'")
    assert ("no wheel" in remedy) == (not has_wheel)


@pytest.mark.parametrize("command", [("test",), ("check", "--offline"), ("check", "new.cedar")])
def test_commands_name_the_extra_where_the_engine_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(policy_files, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "cedarpy", None)
    for name in [name for name in sys.modules if name.startswith("retinue.policies.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.cedar").write_text("", "utf-8")
    result = CliRunner().invoke(program, ["policy", *command])
    assert result.exit_code == 2
    assert "needs cedarpy, which is not installed" in result.output
    assert "pip install 'retinue[policy]'" in result.output
