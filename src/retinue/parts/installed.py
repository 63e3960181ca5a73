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
from retinue.plugins import PARTS, Plugin, how_to_install, list_plugins


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A part that is known by name only: its extra and distribution, and its options by kind of process.

    Each option has the field of the part's table that it writes; a process of the kind has the part if one of
    the fields is set.
    """

    extra: str
    distribution: str
    flags: Mapping[Kind, Mapping[str, str]]

    def is_wanted(self, table: Mapping[str, object], kind: Kind) -> bool:
        """Whether a process of this kind would have the part; ``table`` is unchecked."""
        return any(table.get(field) for field in self.flags.get(kind, {}).values())


KNOWN_PARTS: Mapping[str, KnownPart] = {
    "koi": KnownPart(
        "koi",
        "retinue-koi",
        {
            "hub": {"--koi": "enabled", "--koi-join": "join"},
            "agent": {"--koi-join": "member_join"},
        },
    )
}
"""By name, so that a table or an option of a part that is not installed names the extra."""


RESERVED = frozenset(
    {
        "a2a",
        "access",
        "agents",
        "allow_private_urls",
        "approvals",
        "artifacts",
        "audit",
        "auth",
        "database",
        "directory",
        "discovery",
        "doors",
        "exam",
        "execute",
        "guards",
        "history",
        "hooks",
        "hub",
        "imports",
        "limits",
        "llm",
        "logs",
        "mcp",
        "messages",
        "metrics",
        "parts",
        "policy",
        "receipts",
        "registries",
        "registry",
        "routing",
        "runs",
        "signatures",
        "timeouts",
        "trace",
        "worker",
        "workflows",
    }
)
"""The names of Retinue's own settings; a part of another distribution has none of these names."""


@dataclass(frozen=True, slots=True)
class InstalledParts:
    """One object of each part, and by name the reasons why others cannot be used."""

    parts: Sequence[Part]
    refused: Mapping[str, InvalidSettingError]


def find_installed_parts(off: Collection[str] = ()) -> InstalledParts:
    """The parts of all distributions but those in ``off``; each is imported once in the life of the process.

    Refused are parts that cannot be imported, that were made for another interface, that have the name of a
    setting of Retinue, and the second of a name.
    """
    parts: dict[str, Part] = {}
    refused: dict[str, InvalidSettingError] = {}
    for plugin in list_plugins(PARTS):
        if plugin.name in off:
            continue
        if plugin.name in parts:
            reason = "another distribution has a part of this name"
            refused[plugin.name] = _refuse(plugin, reason, f"uninstall {plugin.distribution}")
            continue
        part = load_part(plugin)
        if isinstance(part, Part):
            parts[plugin.name] = part
        else:
            refused[plugin.name] = part
    return InstalledParts(tuple(parts.values()), refused)


@cache
def load_part(plugin: Plugin) -> Part | InvalidSettingError:
    """The part of an entry point, or the reason why it cannot be used; kept for the life of the process."""
    try:
        return _load(plugin)
    except InvalidSettingError as error:
        return error
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a distribution raises stops no command
        reason = f"{plugin.target} cannot be made: {type(error).__name__}: {error}"
        return _refuse(plugin, reason, f"upgrade {plugin.distribution}, or uninstall it")


def list_parts_of(kind: Kind, off: Collection[str] = ()) -> Sequence[Part]:
    """The parts that this kind of process has from distributions, without those named in ``off``."""
    return [part for part in find_installed_parts(off).parts if kind in part.kinds]


def find_part(name: str) -> Part | None:
    """The installed part of this name."""
    return next((part for part in find_installed_parts(_others(name)).parts), None)


def explain_missing(name: str) -> InvalidSettingError | None:
    """Why a part that Retinue knows by name cannot be used; None for an installed or unknown one."""
    installed = find_installed_parts(_others(name))
    if name in installed.refused:
        return installed.refused[name]
    if name not in KNOWN_PARTS or installed.parts:
        return None
    known = KNOWN_PARTS[name]
    remedy = how_to_install(f"retinue[{known.extra}]", known.distribution)
    return InvalidSettingError(f"part {name}", "its distribution is not installed", remedy=remedy)


def _others(name: str) -> Collection[str]:
    """The names of the other parts, which are not imported for a question about this one."""
    return {plugin.name for plugin in list_plugins(PARTS)} - {name}


def _load(plugin: Plugin) -> Part:
    if plugin.name in RESERVED:
        reason = f"its name is that of a setting of Retinue, [{plugin.name}]"
        raise _refuse(plugin, reason, f"uninstall {plugin.distribution}")
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
    if part_class.name != plugin.name:
        raise _refuse(plugin, "its part has another name", f"uninstall {plugin.distribution}")
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
        part_class.table()  # every setting needs a default, because the table may be missing
    return part_class()


def _refuse(plugin: Plugin, reason: str, remedy: str) -> InvalidSettingError:
    return InvalidSettingError(f"part {plugin.name} of {plugin.distribution}", reason, remedy=remedy)
