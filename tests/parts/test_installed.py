"""Parts of installed distributions: which are used, and how a refused one is named."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from retinue.cli.options import CommandOfParts
from retinue.core.errors import InvalidSettingError
from retinue.parts.installed import KNOWN_PARTS, RESERVED, explain_missing, find_part, list_parts_of
from retinue.parts.part import INTERFACE
from retinue.runtime.hub_process import HubOptions, hub_parts
from retinue.settings import Settings, find_missing_parts, load_settings
from retinue.settings_tables import PartsTable
from tests.plugins import forget_installed, install
from tests.plugins import site as site

PART = """
from contextlib import asynccontextmanager

from retinue.parts.part import Opened, Part


class ToyPart(Part):
    name = "{name}"
    kinds = frozenset({{"hub", "worker"}})
    interface = {interface}

    @asynccontextmanager
    async def open(self, process):
        yield Opened()


NO_PART = "a text"
"""


def install_part(
    site: Path,
    distribution: str = "toy-tools",
    *,
    name: str = "toy",
    interface: int = INTERFACE,
    attribute: str = "ToyPart",
    declared: str = "toy",
) -> None:
    """A distribution that declares a part, whose class has this name and interface."""
    target = f"{distribution.replace('-', '_')}.part:{attribute}"
    text = PART.format(name=name, interface=interface)
    files = {"__init__.py": "", "part.py": text}
    install(site, distribution, {"retinue.parts": {declared: target}}, files)


def reason_of(name: str) -> InvalidSettingError:
    """Why the part cannot be used; it is in no list of parts, and a process says so."""
    assert "toy" not in {part.name for part in list_parts_of("hub")}
    reason = explain_missing(name)
    assert reason is not None
    assert find_missing_parts(Settings()) == {name: reason}
    return reason


def test_a_part_is_in_the_processes_of_its_kinds(site: Path) -> None:
    install_part(site)
    assert "toy" in {part.name for part in list_parts_of("hub")}
    assert [part.name for part in list_parts_of("worker")] == ["toy"]
    assert "toy" not in {part.name for part in list_parts_of("agent")}
    assert find_part("toy") in list_parts_of("hub")
    assert (find_part("no-toy"), explain_missing("toy"), explain_missing("no-toy")) == (None, None, None)
    assert find_missing_parts(Settings()) == {}


def test_it_stands_in_the_list_of_a_hub_unless_the_settings_switch_it_off(site: Path) -> None:
    install_part(site)
    options = HubOptions(bare=True)
    assert "toy" in {part.name for part in hub_parts(options, Settings())}
    off = Settings(parts=PartsTable(off=("toy",)))
    assert "toy" not in {part.name for part in hub_parts(options, off)}


def test_a_part_of_another_interface_is_refused_by_the_name_of_its_distribution(site: Path) -> None:
    install_part(site, interface=INTERFACE + 1)
    reason = reason_of("toy")
    assert reason.field == "part toy of toy-tools"
    assert f"it was made for version {INTERFACE + 1} of the interface of parts" in reason.message
    assert f"this Retinue has version {INTERFACE}" in reason.message
    assert reason.remedy == "upgrade toy-tools, or uninstall it"


def test_a_refused_part_that_is_switched_off_is_not_missed(site: Path) -> None:
    install_part(site, interface=INTERFACE + 1)
    assert find_missing_parts(Settings(parts=PartsTable(off=("toy",)))) == {}


def test_a_part_whose_class_has_another_name_is_refused(site: Path) -> None:
    install_part(site, name="doll")
    reason = reason_of("toy")
    assert "part toy of toy-tools" in reason.message
    assert "its part has another name" in reason.message


def test_the_names_of_the_settings_are_no_names_of_parts() -> None:
    assert Settings.model_fields.keys() == RESERVED


@pytest.mark.parametrize("name", ["mcp", "hub"])
def test_a_part_that_has_the_name_of_a_table_of_retinue_is_refused(
    site: Path, tmp_path: Path, name: str
) -> None:
    install_part(site, name=name, declared=name)
    (tmp_path / "retinue.toml").write_text("[hub]\nport = 9107\n")
    settings = load_settings(start=tmp_path)
    assert settings.hub.port == 9107
    reason = find_missing_parts(settings)[name]
    assert reason.message == (f"part {name} of toy-tools: its name is that of a setting of Retinue, [{name}]")
    assert reason.remedy == "uninstall toy-tools"
    assert find_part(name) is None
    assert "toy_tools" not in sys.modules


def test_of_two_parts_of_one_name_the_second_is_refused(site: Path) -> None:
    install_part(site, "toy-games")
    install_part(site, "toy-tools")
    (part,) = list_parts_of("worker")
    assert type(part).__module__ == "toy_games.part"
    reason = find_missing_parts(Settings())["toy"]
    assert reason.field == "part toy of toy-tools"
    assert "another distribution has a part of this name" in reason.message


@pytest.mark.parametrize(
    ("attribute", "said"), [("NO_PART", "is no class of a part"), ("Absent", "which cannot be imported")]
)
def test_an_entry_point_that_is_no_part_is_refused(site: Path, attribute: str, said: str) -> None:
    install_part(site, attribute=attribute)
    reason = reason_of("toy")
    assert said in reason.message
    assert "toy-tools" in f"{reason.message} {reason.remedy}"


def test_a_known_part_that_is_not_installed_is_explained_by_its_extra(site: Path) -> None:
    install(site, "retinue-koi", {})
    forget_installed()
    assert find_part("koi") is None
    reason = explain_missing("koi")
    assert reason is not None
    assert reason.remedy == (
        "pip install 'retinue[koi]'; from a checkout: pip install . ./packages/retinue-koi"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('    kinds = frozenset({"hub", "worker"})\n', "no attribute 'kinds'"),
        ('    name = "toy"\n', "no attribute 'name'"),
        ("NO_PART", "SystemExit: 4"),
    ],
    ids=["no kinds", "no name", "its import ends the program"],
)
def test_a_part_that_cannot_be_made_is_refused(site: Path, line: str, said: str) -> None:
    install_part(site)
    file = site / "toy_tools" / "part.py"
    broken = "raise SystemExit(4)\nNO_PART" if line == "NO_PART" else ""
    file.write_text(file.read_text("utf-8").replace(line, broken), "utf-8")
    reason = reason_of("toy")
    assert said in reason.message
    assert reason.remedy == "upgrade toy-tools, or uninstall it"


def test_a_part_of_no_kind_is_refused(site: Path) -> None:
    install_part(site)
    file = site / "toy_tools" / "part.py"
    file.write_text(file.read_text("utf-8").replace('{"hub", "worker"}', "()"), "utf-8")
    assert "no kind of process" in reason_of("toy").message


def test_an_option_of_a_part_that_is_switched_off_is_refused(site: Path, tmp_path: Path) -> None:
    install_part(site)
    (tmp_path / "retinue.toml").write_text('[parts]\noff = ["toy"]\n')
    assert load_settings(start=tmp_path).parts.off == ("toy",)
    with pytest.raises(InvalidSettingError, match="part toy is switched off") as caught:
        load_settings({"toy": {"wheels": 4}}, start=tmp_path)
    assert caught.value.remedy == "leave out its options, or remove toy from parts.off"


@pytest.mark.parametrize("place", ["file", "environment", "flags"])
def test_a_part_that_is_switched_off_is_not_imported(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    install_part(site)
    text = '[parts]\noff = ["toy"]\n' if place == "file" else ""
    # its table is accepted unread
    (tmp_path / "retinue.toml").write_text(f"{text}[toy]\nwheels = 4\n")
    if place == "environment":
        monkeypatch.setenv("RETINUE_PARTS__OFF", '["toy"]')
    settings = load_settings({"parts": {"off": ("toy",)}} if place == "flags" else None, start=tmp_path)
    assert find_missing_parts(settings) == {}
    assert list_parts_of("worker", settings.parts.off) == []
    assert explain_missing("koi") is None
    with pytest.raises(InvalidSettingError, match="unknown key"):
        load_settings({"hub": {"prot": 1}, "parts": {"off": ("toy",)}}, start=tmp_path)
    assert "toy_tools" not in sys.modules
    assert [part.name for part in list_parts_of("worker")] == ["toy"]
    assert "toy_tools" in sys.modules


def test_a_wrong_list_of_parts_that_are_off_is_refused(site: Path, tmp_path: Path) -> None:
    install_part(site)
    (tmp_path / "retinue.toml").write_text("[parts]\noff = 4\n")
    with pytest.raises(InvalidSettingError, match=r"parts\.off: Input should be a list"):
        load_settings(start=tmp_path)


def add_option(site: Path, flag: str) -> None:
    """Let the part of `install_part` declare an option."""
    file = site / "toy_tools" / "part.py"
    option = f'    options = (Option("{flag}", "wheels", frozenset({{"hub"}}), "Wheels.", "N"),)\n'
    text = file.read_text("utf-8").replace("import Opened", "import Opened, Option")
    file.write_text(text.replace("    interface", f"{option}    interface"), "utf-8")


@pytest.mark.parametrize("flag", ["--port", "--toys", "--koi-toy"])
def test_a_part_whose_option_may_be_that_of_another_is_refused(site: Path, flag: str) -> None:
    install_part(site)
    add_option(site, flag)
    assert f"its option {flag} does not begin with --toy" in reason_of("toy").message


@pytest.mark.parametrize("flag", ["--toy", "--toy-wheels"])
def test_an_option_begins_with_the_name_of_its_part(site: Path, flag: str) -> None:
    install_part(site)
    add_option(site, flag)
    (part,) = list_parts_of("worker")
    assert [option.flag for option in part.options] == [flag]


def test_options_stay_where_a_second_distribution_has_a_part_of_a_known_name(site: Path) -> None:
    install(site, "toy-tools", {"retinue.parts": {"koi": "toy_tools.part:ToyPart"}}, {})
    command = CommandOfParts("hub", kind="hub", params=[click.Option(["--join", "hub_url"])])
    flags = [flag for param in command.get_params(click.Context(command)) for flag in param.opts]
    assert flags.count("--koi") == 1


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("enabled = true", ["hub"]),
        ('join = "http://127.0.0.1:9/koi-net"', ["hub"]),
        ('member_join = "http://127.0.0.1:9/koi-net"', ["agent"]),
        ("enabled = false", []),
        ('trust = "open"', []),
    ],
)
def test_only_the_kinds_that_would_open_a_part_miss_it(
    site: Path, tmp_path: Path, line: str, kinds: list[str]
) -> None:
    install(site, "retinue-koi", {}, {})
    (tmp_path / "retinue.toml").write_text(f"[koi]\n{line}\n")
    settings = load_settings(start=tmp_path)
    assert [*find_missing_parts(settings)] == ["koi"]
    missing = {kind: [*find_missing_parts(settings, kind)] for kind in ("hub", "agent", "worker")}
    assert missing == {kind: ["koi"] if kind in kinds else [] for kind in missing}


def test_the_fields_of_a_known_part_are_those_of_its_options() -> None:
    (koi,) = [part for part in list_parts_of("hub") if part.name == "koi"]
    declared = {
        kind: {option.flag: option.field for option in koi.options if kind in option.kinds}
        for kind in koi.kinds
    }
    assert declared == KNOWN_PARTS["koi"].flags
