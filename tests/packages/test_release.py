"""The checks of a release, each as a test: what was built is installed into empty environments and used.

Where no package index is reachable, what needs one is skipped, loudly.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from scripts import release
from scripts.environment import ROOT
from scripts.package_readme import render_readme
from scripts.release import Built, CheckFailedError, SkippedError

T = TypeVar("T")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def programs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return or_skip(lambda: release.install(built, tmp_path_factory.mktemp("installed") / "environment"))


def or_skip(check: Callable[[], T]) -> T:
    try:
        return check()
    except SkippedError as error:
        pytest.skip(str(error))


def test_the_version_is_the_same_wherever_it_stands() -> None:
    assert release.check_versions() == release.read_version()


def test_setting_a_version_changes_every_place_that_holds_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = {name: tmp_path / f"{name}.toml" for name in ("retinue", *release.EXTENSIONS)}
    for name, file in {"retinue": release.MAIN, **release.EXTENSIONS}.items():
        copies[name].write_bytes(file.read_bytes())
    monkeypatch.setattr(release, "MAIN", copies.pop("retinue"))
    monkeypatch.setattr(release, "EXTENSIONS", copies)
    release.set_version("7.8.9rc1")
    assert release.read_version() == "7.8.9rc1"
    assert copies.keys() == {"retinue-koi", "retinue-testwriter"}
    for copy in copies.values():
        assert '\nversion = "7.8.9rc1"\n' in copy.read_text()
        assert '"retinue==7.8.9rc1"' in copy.read_text()
    with pytest.raises(CheckFailedError, match=r"uv\.lock"):
        release.check_versions()
    with pytest.raises(CheckFailedError, match="is no version"):
        release.set_version("next")


def test_the_changes_of_the_next_version_are_written_down() -> None:
    assert release.check_changelog()


def test_the_wheels_hold_the_packages_with_types_license_and_version(built: Built) -> None:
    assert "retinue_testwriter" in release.check_wheels(built)
    assert release.check_sdists(built)


def test_a_wheel_with_something_strange_in_it_is_refused(built: Built, tmp_path: Path) -> None:
    copy = tmp_path / built.find("retinue", ".whl").name
    copy.write_bytes(built.find("retinue", ".whl").read_bytes())
    with zipfile.ZipFile(copy, "a") as archive:
        archive.writestr("tests/test_something.py", "")
    with pytest.raises(CheckFailedError, match="holds tests"):
        release.check_wheels(Built(tmp_path, built.uv, built.environment))


def test_the_readme_on_an_index_has_no_links_into_the_repository(built: Built) -> None:
    assert release.check_readme(built)
    shown = render_readme(
        "a [b](c.md) [d](https://e.org/f) ![g](https://h.org/i.svg)\n```md\n[j](k.md)\n```\n"
    )
    assert shown == "a b [d](https://e.org/f) ![g](https://h.org/i.svg)\n```md\n[j](k.md)\n```\n"


def test_every_extra_is_documented() -> None:
    extras = set(re.findall(r"^(\w+) = \[", _optional_dependencies(), re.MULTILINE))
    page = (ROOT / "docs" / "guides" / "installing.md").read_text("utf-8")
    documented = set(re.findall(r"`retinue\[(\w+)\]`", page))
    assert documented == extras


def _optional_dependencies() -> str:
    return release.MAIN.read_text("utf-8").partition("[project.optional-dependencies]")[2].partition("\n[")[0]


def test_the_installed_program_works_in_an_empty_folder_without_the_checkout(
    programs: Path, tmp_path: Path
) -> None:
    assert release.try_program(programs / "retinue", tmp_path / "user")


def test_uvx_runs_the_demo_from_the_wheels_to_its_end(built: Built, tmp_path: Path) -> None:
    assert or_skip(lambda: release.try_uvx(built, tmp_path / "uvx"))


@pytest.mark.soak
def test_pipx_installs_the_wheels(built: Built, tmp_path: Path) -> None:
    assert or_skip(lambda: release.try_pipx(built, tmp_path / "pipx"))
