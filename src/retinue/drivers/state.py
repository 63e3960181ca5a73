"""The state folder: where it is, who may write what, and how the running hub is found (DESIGN 3)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from filelock import FileLock, Timeout

from retinue.core.errors import HubRunningError, StateDamagedError, StateError
from retinue.drivers.files import replace_file, storage_errors

FOLDER = ".retinue"
HUB_VARIABLE = "RETINUE_HUB"

_PIDS = 2**31
"""No process has this number or one above; 0 and below would mean groups of processes."""


def find_state_folder(environ: Mapping[str, str], start: Path) -> Path:
    """``RETINUE_HOME``, else the nearest ``.retinue/`` upward of ``start``, else the user's state folder."""
    if given := environ.get("RETINUE_HOME"):
        return Path(given).expanduser().absolute()
    for folder in (start, *start.parents):
        if (folder / FOLDER).is_dir():
            return folder / FOLDER
    base = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home()) / ".local" / "state"
    return Path(base) / "retinue"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Where the hub of a state folder answers."""

    url: str
    pid: int
    started_at: str


@dataclass(frozen=True, slots=True)
class State:
    """The paths of one state folder, and the few files that this room itself reads and writes."""

    root: Path

    @property
    def registry(self) -> Path:
        return self.root / "registry"

    @property
    def database(self) -> Path:
        return self.root / "retinue.db"

    @property
    def runs(self) -> Path:
        return self.root / "runs.db"

    @property
    def nodes(self) -> Path:
        """The slots of this machine's processes that run workflows."""
        return self.root / "nodes"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def hub_file(self) -> Path:
        return self.root / "hub.json"

    def prepare(self) -> None:
        """Make the folder; raises StateError when that cannot be."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StateDamagedError(
                str(self.root), "it is no folder", remedy="move it away, or set RETINUE_HOME"
            ) from None
        except OSError as error:
            raise StateError(
                f"the state folder {self.root} cannot be made: {error.strerror}", remedy="set RETINUE_HOME"
            ) from error

    def local_token(self) -> str:
        """The token of this state, made at the first call; readable by its owner only (DESIGN 7)."""
        return self._secret("local.token", "token")

    def mesh_key(self) -> bytes:
        """The key with which the processes of this state sign their traces, made at the first call."""
        return self._secret("mesh.key", "key").encode()

    def _secret(self, name: str, what: str) -> str:
        self.prepare()
        path = self.keys / name
        if (secret := self._read_secret(path, what)) is not None:
            return secret
        with storage_errors(path):
            self.keys.mkdir(mode=0o700, exist_ok=True)
            with FileLock(self.keys / ".lock"):
                if (secret := self._read_secret(path, what)) is not None:
                    return secret
                secret = secrets.token_urlsafe(32)
                replace_file(path, secret.encode(), mode=0o600)
        return secret

    @staticmethod
    def _read_secret(path: Path, what: str) -> str | None:
        try:
            secret = path.read_text("ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateDamagedError(str(path), str(error), remedy="remove it; a new one is made") from error
        if len(secret) < 32:
            raise StateDamagedError(str(path), f"it holds no {what}", remedy="remove it; a new one is made")
        return secret

    def read_hub(self) -> HubAddress | None:
        """The running hub, or None; a file left by a killed hub counts as none."""
        try:
            found = orjson.loads(self.hub_file.read_bytes())
            hub = HubAddress(str(found["url"]), int(found["pid"]), str(found.get("started_at", "")))
            if not 0 < hub.pid < _PIDS:
                raise ValueError(f"pid {hub.pid}")
        except FileNotFoundError:
            return None
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise StateDamagedError(
                str(self.hub_file), f"no hub address in it ({error})", remedy="remove it, then: retinue hub"
            ) from error
        return hub if _is_alive(hub.pid) else None

    def write_hub(self, url: str) -> None:
        """Say where this process answers as the hub."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        address = {"url": url, "pid": os.getpid(), "started_at": started_at}
        with storage_errors(self.hub_file):
            replace_file(self.hub_file, orjson.dumps(address), mode=0o600)

    def forget_hub(self) -> None:
        """Take that back."""
        self.hub_file.unlink(missing_ok=True)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Be the one writer of this state while inside; raises HubRunningError when another is."""
        self.prepare()
        lock = FileLock(self.root / "hub.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            hub = self.read_hub()
            raise HubRunningError(
                hub.url if hub else "(still starting)", hub.pid if hub else 0, str(self.root)
            ) from None
        try:
            yield
        finally:
            lock.release()


def find_hub_url(state: State) -> str | None:
    """The hub that a process of this state belongs to: ``RETINUE_HUB``, else the one that runs on it."""
    if given := os.environ.get(HUB_VARIABLE):
        return given
    hub = state.read_hub()
    return None if hub is None else hub.url


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
