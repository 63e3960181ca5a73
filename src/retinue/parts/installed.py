"""The parts of installed distributions, which declare them as entry points of the group ``retinue.parts``.

An entry point is ``NAME = module:Class``; the class is a `Part` of that name. The module is loaded by every
command that reads settings, so it imports what is heavy inside `Part.open`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from retinue.core.errors import InvalidSettingError
from retinue.parts.part import INTERFACE, Part
from retinue.parts.process import Kind
from retinue.plugins import PARTS, Plugin, list_plugins


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A part that is known by name only: the extra that installs it, and its options by kind of process."""

    extra: str
    flags: Mapping[Kind, Sequence[str]]


KNOWN_PARTS: Mapping[str, KnownPart] = {
    "koi": KnownPart("koi", {"hub": ("--koi", "--koi-join"), "agent": ("--koi-join",)})
}
"""By name, so that a table or an option of a part that is not installed names the extra."""


@dataclass(frozen=True, slots=True)
class InstalledParts:
    """One object of each part, and by name the reasons why others cannot be used."""

    parts: Sequence[Part]
    refused: Mapping[str, InvalidSettingError]


@cache
def find_installed_parts() -> InstalledParts:
    """The parts of all distributions; the result is kept for the life of the process.

    Refused are parts that cannot be imported, that were made for another interface, and the second of a name.
    """
    parts: dict[str, Part] = {}
    refused: dict[str, InvalidSettingError] = {}
    for plugin in list_plugins(PARTS):
        try:
            parts[plugin.name] = _load(plugin, parts)
        except InvalidSettingError as error:
            refused[plugin.name] = error
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what a distribution raises stops no command
            reason = f"{plugin.target} cannot be made: {type(error).__name__}: {error}"
            refused[plugin.name] = _refuse(plugin, reason, f"upgrade {plugin.distribution}, or uninstall it")
    return InstalledParts(tuple(parts.values()), refused)


def list_parts_of(kind: Kind, off: Collection[str] = ()) -> Sequence[Part]:
    """The parts that this kind of process has from distributions, without those named in ``off``."""
    return [part for part in find_installed_parts().parts if kind in part.kinds and part.name not in off]


def find_part(name: str) -> Part | None:
    """The installed part of this name."""
    return next((part for part in find_installed_parts().parts if part.name == name), None)


def explain_missing(name: str) -> InvalidSettingError | None:
    """Why a part that Retinue knows by name cannot be used; None for an installed or unknown one."""
    installed = find_installed_parts()
    if name in installed.refused:
        return installed.refused[name]
    if name not in KNOWN_PARTS or find_part(name) is not None:
        return None
    remedy = f"pip install 'retinue[{KNOWN_PARTS[name].extra}]'"
    return InvalidSettingError(f"part {name}", "its distribution is not installed", remedy=remedy)


def _load(plugin: Plugin, loaded: Mapping[str, Part]) -> Part:
    part_class = plugin.load(PARTS)
    if not (isinstance(part_class, type) and issubclass(part_class, Part)):
        raise _refuse(plugin, f"{plugin.target} is no class of a part", f"uninstall {plugin.distribution}")
    if part_class.interface != INTERFACE:
        raise _refuse(
            plugin,
            f"it was made for version {part_class.interface} of the interface of parts, and this Retinue has "
            f"version {INTERFACE}",
            f"upgrade {plugin.distribution}, or uninstall it",
        )
    if part_class.name != plugin.name or plugin.name in loaded:
        what = (
            "another distribution has a part of this name"
            if plugin.name in loaded
            else "its part has another name"
        )
        raise _refuse(plugin, what, f"uninstall {plugin.distribution}")
    if not part_class.kinds:
        raise _refuse(plugin, "its part is of no kind of process", f"uninstall {plugin.distribution}")
    own = f"--{part_class.name}"
    for option in part_class.options:
        if option.flag != own and not option.flag.startswith(f"{own}-"):
            raise _refuse(
                plugin,
                f"its option {option.flag} does not begin with {own}",
                f"uninstall {plugin.distribution}",
            )
    if part_class.table is not None:
        part_class.table()  # every setting needs a default, because nobody has to write the table
    return part_class()


def _refuse(plugin: Plugin, reason: str, remedy: str) -> InvalidSettingError:
    return InvalidSettingError(f"part {plugin.name} of {plugin.distribution}", reason, remedy=remedy)
