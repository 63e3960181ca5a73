"""The state folder: where it is, who may write what, and how the running hub is found (DESIGN 3)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from filelock import FileLock, Timeout

from retinue.core.errors import HubRunningError, StateDamagedError, StateError
from retinue.drivers.files import replace_file, storage_errors
from retinue.drivers.mesh_bearer import mesh_key

FOLDER = ".retinue"
HUB_VARIABLE = "RETINUE_HUB"
_LOCK = "hub.lock"

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
    """Where the hub of a state folder answers; ready = the agents that it starts have been waited for."""

    url: str
    pid: int
    started_at: str
    is_ready: bool = True


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
        self.prepare()
        path = self.keys / "local.token"
        if (token := self._read_token(path)) is not None:
            return token
        with storage_errors(path):
            self.keys.mkdir(mode=0o700, exist_ok=True)
            with FileLock(self.keys / ".lock"):
                if (token := self._read_token(path)) is not None:
                    return token
                token = f"rtn_local_{secrets.token_urlsafe(32)}"
                replace_file(path, token.encode(), mode=0o600)
        return token

    def mesh_key(self) -> bytes:
        """The key with which the processes of this state sign their traces, made at the first call."""
        self.prepare()
        return mesh_key(self.keys)

    @staticmethod
    def _read_token(path: Path) -> str | None:
        try:
            token = path.read_text("ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateDamagedError(str(path), str(error), remedy="remove it; a new one is made") from error
        if len(token) < 32:
            raise StateDamagedError(str(path), "it holds no token", remedy="remove it; a new one is made")
        return token

    def read_hub(self) -> HubAddress | None:
        """The running hub, or None; a file left by a killed hub counts as none.

        Also when another process has its number by now, as far as the system tells births of processes.
        """
        try:
            found = orjson.loads(self.hub_file.read_bytes())
            birth = found.get("birth")
            url, pid = str(found["url"]), int(found["pid"])
            hub = HubAddress(url, pid, str(found.get("started_at", "")), bool(found.get("ready", True)))
            if not 0 < hub.pid < _PIDS:
                raise ValueError(f"pid {hub.pid}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateDamagedError(
                str(self.hub_file), f"no hub address in it ({error})", remedy="remove it, then: retinue hub"
            ) from error
        same = birth is None or _birth_of(hub.pid) in (None, birth)
        return hub if same and _is_alive(hub.pid) else None

    def write_hub(self, url: str, *, ready: bool = True) -> None:
        """Say where this process answers as the hub."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        address: dict[str, object] = {
            "url": url,
            "pid": os.getpid(),
            "started_at": started_at,
            "ready": ready,
        }
        if (birth := _birth_of(os.getpid())) is not None:
            address["birth"] = birth
        with storage_errors(self.hub_file):
            replace_file(self.hub_file, orjson.dumps(address), mode=0o600)

    def forget_hub(self) -> None:
        """Take that back, unless another process has written its own by now."""
        with suppress(OSError, ValueError, AttributeError):
            if orjson.loads(self.hub_file.read_bytes()).get("pid") != os.getpid():
                return
        with suppress(NotADirectoryError):
            self.hub_file.unlink(missing_ok=True)

    def identity(self) -> tuple[int, int] | None:
        """What tells the folder from one made anew in its place, as long as somebody owns it; None if gone.

        The open lock keeps its number; that of a folder may be given to the next one.
        """
        try:
            found = (self.root / _LOCK).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def own(self) -> Iterator[None]:
        """Be the one writer of this state while inside; raises HubRunningError when another is."""
        self.prepare()
        lock = FileLock(self.root / _LOCK)
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


def _birth_of(pid: int) -> int | None:
    """When a process began, in the clock ticks of Linux since the machine did; None where nobody tells."""
    try:
        # the name in brackets may hold spaces and brackets itself
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
