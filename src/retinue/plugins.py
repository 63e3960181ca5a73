"""Plugins: agents, workflows, commands and parts that installed distributions declare as entry points.

========================  =======================  ====================================================
group                     name                     value
========================  =======================  ====================================================
``retinue.agents``        ``NAME`` or              ``module:attribute`` of an Agent; the hub serves it,
                          ``NAME.PORT``            on PORT if that is free
``retinue.workflows``     any                      a package whose ``*.yaml`` files are definitions, or
                                                   ``module:attribute`` of a workflow in Python
``retinue.commands``      ``NAME`` or              ``module:attribute`` of a click command; its line in
                          ``NAME.SECTION``         ``retinue --help`` is the distribution's summary
``retinue.parts``         ``NAME``                 ``module:attribute``: a `Part` class of that name
========================  =======================  ====================================================

Listing plugins imports nothing. ``importlib.metadata`` is not used because importing it takes three times as
long as importing click, and every ``retinue --help`` and every shell completion would pay for that.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from retinue.core.errors import InvalidSettingError

AGENTS = "retinue.agents"
WORKFLOWS = "retinue.workflows"
COMMANDS = "retinue.commands"
PARTS = "retinue.parts"

_MARK = b"[retinue."
_NOT_IN_NAMES = re.compile(r"[-_.]+")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point.

    ``qualifier`` is the help section of a command, the port of an agent, or empty.
    ``target`` is ``module:attribute`` or a module; ``summary`` is the distribution's.
    """

    name: str
    qualifier: str
    target: str
    distribution: str
    summary: str

    def load(self, group: str) -> Any:
        """Import the object. Raises InvalidSettingError when the import fails."""
        module, _, attribute = self.target.partition(":")
        try:
            value = import_module(module)
            return getattr(value, attribute) if attribute else value
        except (ImportError, AttributeError) as error:
            raise InvalidSettingError(
                f"{group}: {self.name}",
                f"{self.distribution} declares {self.target}, which cannot be imported: {error}",
                remedy=f"reinstall or uninstall {self.distribution}",
            ) from error


@cache
def list_plugins(group: str) -> Sequence[Plugin]:
    """List the entry points of a group in all installed distributions, ordered by distribution.

    The result is cached for the life of the process.
    """
    plugins = []
    for folder in sorted(_find_distributions(), key=lambda folder: folder.name):
        name, summary = _read_metadata(folder)
        for declared, target in _read_group(folder / "entry_points.txt", group):
            short, qualifier = _split_name(group, declared)
            plugins.append(Plugin(short, qualifier, target, name, summary))
    return tuple(plugins)


def find_plugin(group: str, name: str) -> Plugin | None:
    """Find an entry point by name. Raises InvalidSettingError when two distributions declare it."""
    plugins = [plugin for plugin in list_plugins(group) if plugin.name == name]
    if len(plugins) > 1:
        raise conflict(group, name, [plugin.distribution for plugin in plugins])
    return plugins[0] if plugins else None


def list_unique_plugins(group: str) -> Sequence[Plugin]:
    """Like `list_plugins`, but raises InvalidSettingError when two distributions declare the same name."""
    plugins = list_plugins(group)
    for plugin in plugins:
        find_plugin(group, plugin.name)
    return plugins


def how_to_install(requirement: str, distribution: str) -> str:
    """The remedy for a distribution of Retinue that is not installed, from an index and from a checkout."""
    return f"pip install '{requirement}'; from a checkout: pip install . ./packages/{distribution}"


def conflict(group: str, name: str, distributions: Sequence[str]) -> InvalidSettingError:
    """Build the error for a name that several distributions declare."""
    return InvalidSettingError(
        f"{group}: {name}",
        f"declared by {' and by '.join(distributions)}",
        remedy=f"uninstall {' or '.join(name for name in distributions if name != 'retinue')}",
    )


def _find_distributions() -> Iterator[Path]:
    """Find the metadata folders that declare plugins; the first on ``sys.path`` wins."""
    seen = set()
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")  # noqa: PTH208 - a Path per file is too slow
        except OSError:
            continue  # sys.path may contain zip files and missing folders
        for name in names:
            if not name.endswith(".dist-info"):
                continue
            distribution = _NOT_IN_NAMES.sub("-", name.partition("-")[0]).lower()
            if distribution in seen:
                continue
            seen.add(distribution)
            folder = Path(place or ".", name)
            try:
                declares = _MARK in (folder / "entry_points.txt").read_bytes()
            except OSError:
                continue  # most distributions have no entry points
            if declares:
                yield folder


def _read_group(file: Path, group: str) -> Iterator[tuple[str, str]]:
    """Read name and value of each entry point of a group, in file order."""
    section = ""
    for line in file.read_text("utf-8", "replace").splitlines():
        text = line.strip()
        if text.startswith("["):
            section = text.strip("[] ")
        elif section == group and "=" in text and not text.startswith(("#", ";")):
            name, _, value = text.partition("=")
            yield name.strip(), value.strip()


def _read_metadata(folder: Path) -> tuple[str, str]:
    """Read name and summary of a distribution from its core metadata."""
    fields = {"Name": folder.name.partition("-")[0]}
    try:
        text = (folder / "METADATA").read_text("utf-8", "replace")
    except OSError:
        text = ""
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(": ")
        if key in ("Name", "Summary"):
            fields[key] = value.strip()
    return fields["Name"], fields.get("Summary", "")


def _split_name(group: str, declared: str) -> tuple[str, str]:
    if group == COMMANDS:
        name, _, section = declared.partition(".")
        return name, section
    name, _, port = declared.rpartition(".")
    # the name of an agent may contain dots
    return (name, port) if group == AGENTS and name and port.isdecimal() else (declared, "")
