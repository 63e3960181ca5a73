"""Reads the settings of a running process anew, applies what can change while it runs, and says what changed.

Values are never printed: they may be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from retinue.core.errors import RetinueError
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.permissions import Access
from retinue.runtime.factories import limit_settings, timeout_settings
from retinue.runtime.serving import Echo
from retinue.settings import Settings

LIVE = ("limits.in_flight", "limits.calls_per_s", "limits.burst", "timeouts.door_s")
"""The settings that apply at once, besides the lists of callers ``access.NAME.receive``."""


class ConfigurationReload:
    """The settings of one process; call it to read them anew.

    ``reread`` reads file and environment with the options of the command; ``access_of`` gives the access
    lists of the process.
    """

    def __init__(
        self,
        settings: Settings,
        reread: Callable[[], Settings],
        dispatcher: Dispatcher,
        access_of: Callable[[Settings], Access],
        echo: Echo,
    ) -> None:
        self._started_with = self._settings = settings
        self._reread = reread
        self._dispatcher = dispatcher
        self._access_of = access_of
        self._echo = echo

    def __call__(self) -> None:
        """Read the settings; invalid ones are reported, and the previous ones stay."""
        try:
            settings = self._reread()
            access = self._access_of(settings)
        except RetinueError as error:
            remedy = f" — {error.remedy}" if error.remedy else ""
            self._echo(f"settings not read: {error.message}{remedy}; the previous ones stay")
            return
        changed = [name for name in list_changes(self._settings, settings) if is_live(name)]
        waiting = [name for name in list_changes(self._started_with, settings) if not is_live(name)]
        if changed:
            self._dispatcher.admission.limits.configure(limit_settings(settings))
            self._dispatcher.timeouts = timeout_settings(settings)
            self._dispatcher.access.replace(access)
        self._settings = settings
        said = [f"now in force: {', '.join(changed)}"] if changed else []
        said += [f"at the next start: {', '.join(waiting)}"] if waiting else []
        self._echo(f"settings read again; {'; '.join(said) or 'nothing changed'}")


def is_live(name: str) -> bool:
    """Whether a change of this setting applies at once."""
    return name in LIVE or (name.startswith("access.") and name.endswith(".receive"))


def list_changes(old: Settings, new: Settings) -> list[str]:
    """The settings that differ, by their dotted names."""
    return sorted(_differences("", old.model_dump(), new.model_dump()))


def _differences(path: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if not (isinstance(old, Mapping) or isinstance(new, Mapping)):
        return [path]
    olds, news = (one if isinstance(one, Mapping) else {} for one in (old, new))
    found: list[str] = []
    for name in {*olds, *news}:
        found += _differences(f"{path}.{name}" if path else str(name), olds.get(name), news.get(name))
    return found or [path]
