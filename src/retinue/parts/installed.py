"""The parts of installed distributions, which declare them as entry points of the group ``retinue.parts``.

An entry point is ``NAME = module:Class``; the class is a `Part` of that name. The module is loaded by every
command that reads settings, so it imports what is heavy inside `Part.open`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from retinue.core.errors import InvalidSettingError
from retinue.parts.part import INTERFACE, Kind, Part
from retinue.plugins import PARTS, Plugin, list_unique_plugins


@cache
def list_installed_parts() -> Sequence[Part]:
    """One object of each part; the result is kept for the life of the process.

    Raises InvalidSettingError for a part that cannot be imported or was made for another interface.
    """
    return tuple(_load(plugin) for plugin in list_unique_plugins(PARTS))


def list_parts_of(kind: Kind, off: Collection[str] = ()) -> Sequence[Part]:
    """The parts that this kind of process has from distributions, without those named in ``off``."""
    return [part for part in list_installed_parts() if kind in part.kinds and part.name not in off]


def _load(plugin: Plugin) -> Part:
    part_class = plugin.load(PARTS)
    field = f"{PARTS}: {plugin.name}"
    if not (isinstance(part_class, type) and issubclass(part_class, Part)):
        raise InvalidSettingError(
            field,
            f"{plugin.distribution} declares {plugin.target}, which is no class of a part",
            remedy=f"uninstall {plugin.distribution}",
        )
    if part_class.interface != INTERFACE:
        raise InvalidSettingError(
            field,
            f"{plugin.distribution} was made for version {part_class.interface} of the interface of parts, "
            f"this Retinue has version {INTERFACE}",
            remedy=f"upgrade {plugin.distribution}, or uninstall it",
        )
    if part_class.name != plugin.name:
        raise InvalidSettingError(
            field, f"the part of {plugin.target} is named {part_class.name}", remedy="give both one name"
        )
    return part_class()
