"""Restores a state folder from a backup; access that was revoked since the backup stays revoked.

Secrets and decisions about access are not rolled back where the replaced state still holds them: tokens and
keys, imports and their accepted tools. Otherwise a token that was revoked after the backup, or a key that was
replaced, would be valid again.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from retinue.core.errors import HubRunningError, InvalidSettingError, StateError
from retinue.storage.backup import back_up
from retinue.storage.state import OUTCOMES, State

CURRENT = ("keys", "imports.toml", "imported-tools.json", "moved-servers")
"""Entries that are taken from the replaced state, unless the caller wants those of the backup."""

_OF_A_STATE = ("keys", "registry", "runs.db", "retinue.db")


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore.

    ``names`` are the restored entries, ``current`` the entries that come from the replaced state, which is in
    ``former`` now; None if there was no state.
    """

    names: tuple[str, ...]
    current: tuple[str, ...] = ()
    former: Path | None = None


def restore(backup: Path, state: State, *, replace: bool = False, keys_of_backup: bool = False) -> Restored:
    """Copy a backup to the place of ``state``, whose folder is new or empty, or is moved away first.

    With ``keys_of_backup`` the entries in `CURRENT` are those of the backup as well. Raises
    InvalidSettingError if the folder is no backup, or the state is not empty and ``replace`` is false;
    HubRunningError; StateError if the state cannot be moved or the copy cannot be written. Then the state is
    as it was.
    """
    if not any((backup / name).exists() for name in _OF_A_STATE):
        raise InvalidSettingError(
            "DIR", f"{backup} holds no backup", remedy="name a folder of retinue backup"
        )
    hub = state.read_hub()
    if hub is not None:
        raise HubRunningError(hub.url, hub.pid, str(state.root))
    if backup.is_relative_to(state.root):
        raise InvalidSettingError("DIR", f"{backup} is in the state folder", remedy="copy it elsewhere")
    former = _move_away(state.root, replace=replace)
    try:
        names = back_up(State(backup), state.root)
        current = () if former is None or keys_of_backup else _take_over(former, state.root)
        if former is not None and not keys_of_backup:
            _take_outcomes(former, state.root)
    except BaseException:
        if former is not None:
            shutil.rmtree(state.root, ignore_errors=True)
            former.rename(state.root)
        raise
    return Restored(tuple(names), current, former)


def _move_away(root: Path, *, replace: bool) -> Path | None:
    """Rename the state folder within its parent; returns its new place, None if there is nothing to move."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return None
    if not replace:
        raise InvalidSettingError(
            "state", f"{root} is not empty", remedy="move it away and replace it with --replace"
        )
    former = root.with_name(f"{root.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    try:
        root.rename(former)
    except OSError as error:
        raise StateError(
            f"{root} cannot be moved to {former.name}: {error.strerror}",
            remedy="move what it holds away, then repeat the command",
        ) from error
    return former


def _take_over(former: Path, root: Path) -> tuple[str, ...]:
    """Put the current entries of the replaced state in place of those of the backup; returns their names."""
    present = [name for name in CURRENT if (former / name).exists()]
    if "keys" not in present:
        return ()
    for name in CURRENT:
        target = root / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    for name in present:
        if (former / name).is_dir():
            shutil.copytree(former / name, root / name, copy_function=_copy_private)
            (root / name).chmod(0o700)
        else:
            _copy_private(former / name, root / name)
    return tuple(present)


def _take_outcomes(former: Path, root: Path) -> None:
    """Keep the outcomes of calls: steps that ran after the backup run again, under the same keys."""
    for outcomes in former.glob(OUTCOMES):
        shutil.copytree(outcomes, root / OUTCOMES, copy_function=_copy_private)
        (root / OUTCOMES).chmod(0o700)


def _copy_private(source: str | Path, target: str | Path) -> str:
    with Path(source).open("rb") as original:
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as copy:
            shutil.copyfileobj(original, copy)
            copy.flush()
            os.fsync(copy.fileno())
    return str(target)
