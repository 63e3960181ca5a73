"""Reloads the settings of a running process, applies live changes, and reports all changes.

Values are never printed, because they may be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from retinue.core.errors import RetinueError
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.permissions import Access
from retinue.parts.part import LivePart
from retinue.parts.process import Echo, Tables
from retinue.runtime.access import advertised, check_address, security_settings
from retinue.runtime.factories import guard_settings, limit_settings, timeout_settings
from retinue.runtime.launch import Address, tables_of
from retinue.settings import Settings
from retinue.settings_tables import LimitTable, TimeoutTable, TraceTable
from retinue.web.security import PathExceptions, SecurityMiddleware


class ConfigurationReload:
    """The settings of one process; call it to read them again.

    ``reread`` reads file and environment with the options of the command. ``parts`` of the process take
    settings while it runs; others join with `add`.
    """

    def __init__(
        self, settings: Settings, reread: Callable[[], Settings], parts: list[LivePart], echo: Echo
    ) -> None:
        self._started_with = self._settings = settings
        self._reread = reread
        self._parts = parts
        self._echo = echo

    def add(self, part: LivePart) -> None:
        """Apply settings to one more part."""
        self._parts.append(part)

    def __call__(self) -> None:
        """Read the settings; invalid ones are reported, and the previous ones stay."""
        try:
            settings = self._reread()
            changed = [name for name in list_changes(self._settings, settings) if self._is_live(name)]
            touched = [part for part in self._parts if any(_takes(part, name) for name in changed)]
            # all are checked before the first is applied
            tables = tables_of(settings)
            changes = [part.prepare(tables) for part in touched]
        except RetinueError as error:
            remedy = f" — {error.remedy}" if error.remedy else ""
            self._echo(f"settings not read: {error.message}{remedy}; the previous ones stay")
            return
        for apply in changes:
            apply()
        waiting = [name for name in list_changes(self._started_with, settings) if not self._is_live(name)]
        self._settings = settings
        parts = [f"now in force: {', '.join(changed)}"] if changed else []
        parts += [f"at the next start: {', '.join(waiting)}"] if waiting else []
        self._echo(f"settings read again; {'; '.join(parts) or 'nothing changed'}")

    def _is_live(self, name: str) -> bool:
        return any(_takes(part, name) for part in self._parts)


def _takes(part: LivePart, name: str) -> bool:
    """Whether the setting is one of the part."""
    return any(fnmatchcase(name, glob) for glob in part.names)


def dispatcher_parts(dispatcher: Dispatcher, access_of: Callable[[Settings], Access]) -> list[LivePart]:
    """The settings that every process applies: limits of calls and chains, and the lists of callers of its
    agents.
    """

    def limits(tables: Tables) -> Callable[[], None]:
        settings = limit_settings(tables.get(LimitTable))
        return lambda: dispatcher.admission.limits.configure(settings)

    def chains(tables: Tables) -> Callable[[], None]:
        settings = guard_settings(tables.get(TraceTable))
        return lambda: dispatcher.admission.guard.configure(settings)

    def times(tables: Tables) -> Callable[[], None]:
        def apply() -> None:
            dispatcher.timeouts = timeout_settings(tables.get(TimeoutTable))

        return apply

    def access(tables: Tables) -> Callable[[], None]:
        lists = access_of(tables.get(Settings))
        return lambda: dispatcher.access.replace(lists)

    return [
        LivePart(("limits.in_flight", "limits.calls_per_s", "limits.burst"), limits),
        LivePart(("trace.*",), chains),
        LivePart(("timeouts.door_s",), times),
        LivePart(("access.*.receive",), access),
    ]


def endpoint_part(checks: SecurityMiddleware, address: Address, exceptions: PathExceptions) -> LivePart:
    """Who may reach the endpoints of a process at ``address``.

    ``exceptions`` are those of `security_settings`; no setting changes them.
    """

    def prepare(tables: Tables) -> Callable[[], None]:
        settings = tables.get(Settings)
        check_address(address.host, settings.auth, insecure_ok=address.insecure_bind)
        checked = security_settings(advertised(settings, address.advertise), address.host, exceptions)
        return lambda: checks.configure(checked)

    return LivePart(("doors.hosts", "doors.origins", "auth.anonymous", "metrics.public"), prepare)


def list_changes(old: Settings, new: Settings) -> list[str]:
    """The settings that differ, by their dotted names."""
    return sorted(_differences("", old.model_dump(), new.model_dump()))


def _differences(path: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if not (isinstance(old, Mapping) or isinstance(new, Mapping)):
        return [path]
    olds, news = (value if isinstance(value, Mapping) else {} for value in (old, new))
    paths: list[str] = []
    for name in {*olds, *news}:
        paths += _differences(f"{path}.{name}" if path else str(name), olds.get(name), news.get(name))
    return paths or [path]
