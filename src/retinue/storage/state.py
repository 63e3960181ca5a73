"""The state folder: its location, its paths, its keys, its lock and the address of the running hub.

The folder holds ``registry/``, ``retinue.db``, ``runs.db`` with ``runs.db.mark``, ``nodes/``, ``keys/``,
``spending/``, ``logs/``, ``hub.json``, ``hub.log`` and ``hub.lock`` (specification 10.3).
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from retinue.core.errors import HubRunningError, StateDamagedError, StateError
from retinue.storage.files import OTHERS, hold_lock, list_open_to_others, replace_file, storage_errors
from retinue.storage.mesh_key import mesh_key

FOLDER = ".retinue"
HUB_VARIABLE = "RETINUE_HUB"
HUB_PLACE_VARIABLE = "RETINUE_HUB_PLACE"
"""Environment variable with the place of a process in a hub with several; absent from every other process."""
TEAM_VARIABLE = "RETINUE_TEAM"
"""Environment variable with the name of the team whose model a process serves; absent elsewhere."""
TEAM_BUDGET_VARIABLE = "RETINUE_TEAM_BUDGET"
"""Environment variable with the table ``[budget]`` of that team as JSON; absent where it has none."""
_LOCK = "hub.lock"
_LEADER_LOCK = "hub-leader.lock"

OUTCOMES = "outcomes"
"""The folder of the stored outcomes."""

_OWN = (
    "registry",
    "retinue.db*",
    "runs.db*",
    "nodes",
    "keys",
    "spending",
    "workflows",
    "sessions",
    "tasks",
    OUTCOMES,
    "artifacts.db*",
    "history.db*",
    "exams.json",
    "receipts.json",
    "hub.json",
    "hub.lock",
    "hub.log*",
    "logs",
    "hub-start.lock",
    "hub-leader.lock",
    "imports.toml*",
    "agents",
    "imported-tools.json",
    "moved-servers",
    "teams",
    "team-environments",
)
"""The entries of a state folder, as patterns."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_MAX_STEM = 80

_PIDS = 2**31
"""Process ids are below this; 0 and negative numbers would address process groups."""


def find_state_folder(environ: Mapping[str, str], start: Path) -> Path:
    """``RETINUE_HOME``, else the nearest ``.retinue/`` from ``start`` upwards, else the user's folder."""
    if home := environ.get("RETINUE_HOME"):
        return Path(home).expanduser().absolute()
    for folder in (start, *start.parents):
        if (folder / FOLDER).is_dir():
            return folder / FOLDER
    base = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home()) / ".local" / "state"
    return Path(base) / "retinue"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Address of the running hub; ``is_ready`` once the agents that it starts have answered or timed out.

    ``writes_log`` if its output goes to the state folder's ``hub.log``. ``birth`` is the start time of its
    process where the system reports it. ``processes`` is how many processes serve at the address.
    """

    url: str
    pid: int
    started_at: str
    is_ready: bool = True
    writes_log: bool = False
    birth: int | None = None
    processes: int = 1


@dataclass(frozen=True, slots=True)
class State:
    """Paths of one state folder, and access to its keys, lock and hub address."""

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
        """Slots of the processes of this machine that run workflows."""
        return self.root / "nodes"

    @property
    def imports(self) -> Path:
        """The imported MCP servers."""
        return self.root / "imports.toml"

    @property
    def agents(self) -> Path:
        """The imported agents in Markdown, which the hub serves."""
        return self.root / "agents"

    @property
    def pins(self) -> Path:
        """The accepted tools of the imported servers."""
        return self.root / "imported-tools.json"

    @property
    def sessions(self) -> Path:
        """Conversations with the agents, one file each."""
        return self.root / "sessions"

    @property
    def browser_sessions(self) -> Path:
        """The sessions of the dashboard; they are not backed up, so that an ended one stays ended."""
        return self.root / "browser-sessions.json"

    @property
    def tasks(self) -> Path:
        """The tasks of each process, of A2A and of messages, one SQLite file for each."""
        return self.root / "tasks"

    def tasks_file(self, agent: str, number: int, kind: str = "") -> Path:
        """The task file of the ``number``-th process of an agent, from 1.

        ``kind`` is "" for A2A, else the name of another protocol.
        """
        # "~" is in no name of an agent
        suffix = f"~{kind}" if kind else ""
        return self.tasks / f"{_UNSAFE.sub('_', agent)[:_MAX_STEM]}{suffix}-{number}.db"

    def outcomes_file(self, agent: str) -> Path:
        """The outcomes of an agent's calls by idempotency key."""
        return self.root / OUTCOMES / f"{_UNSAFE.sub('_', agent)[:_MAX_STEM]}.db"

    @property
    def artifacts(self) -> Path:
        """The index of the artifacts; their content is in the registry."""
        return self.root / "artifacts.db"

    @property
    def history(self) -> Path:
        """What came of calls that were found by words."""
        return self.root / "history.db"

    @property
    def exams(self) -> Path:
        """The results of the entrance exams of agents."""
        return self.root / "exams.json"

    @property
    def receipts(self) -> Path:
        """The receipts of other hubs, and when own ones were issued."""
        return self.root / "receipts.json"

    @property
    def spending(self) -> Path:
        """The spending of the model agents, one file for each."""
        return self.root / "spending"

    def budget_of_team(self, team: str) -> Path:
        """What the models of a team have spent together."""
        return self.spending / f"{team}@.json"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def hub_log(self) -> Path:
        """The output of a hub without a terminal."""
        return self.root / "hub.log"

    @property
    def home(self) -> Path:
        """The home folder of programs where that of this process cannot be written."""
        return self.root / "home"

    @property
    def agent_logs(self) -> Path:
        """The output of the agents that the hub starts, one file for each."""
        return self.root / "logs"

    @property
    def hub_file(self) -> Path:
        return self.root / "hub.json"

    def prepare(self) -> None:
        """Create the folder. Raises StateError when it cannot be created."""
        try:
            if not self.root.is_dir():
                self.root.parent.mkdir(parents=True, exist_ok=True)
                self.root.mkdir(mode=0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StateDamagedError(
                str(self.root), "it is not a folder", remedy="move the file away, or set RETINUE_HOME"
            ) from None
        except OSError as error:
            raise StateError(
                f"the state folder {self.root} cannot be created: {error.strerror}",
                remedy="set RETINUE_HOME to a writable folder",
            ) from error

    def list_open_to_others(self) -> Iterator[Path]:
        """The paths that other users of this machine may read: the folder, and everything of it that is ours.

        Files of the user in the folder are not looked at; it may be a folder of something else too.
        """
        with suppress(OSError):
            if self.root.stat().st_mode & OTHERS:
                yield self.root
        yield from list_open_to_others(path for name in _OWN for path in self.root.glob(name))

    def protect(self) -> int:
        """Take the state from other users, as versions before this one did not; returns the changed paths.

        The folder itself is changed only if nothing but the state is in it.
        """
        if not self.root.is_dir() or not self.root.stat().st_mode & OTHERS:
            return 0  # no other user can enter
        own = {path for name in _OWN for path in self.root.glob(name)}
        changed = 0
        for path in self.list_open_to_others():
            if path != self.root or own.issuperset(self.root.iterdir()):
                with suppress(OSError):  # it belongs to another user; `doctor` names it
                    path.chmod(path.stat().st_mode & ~OTHERS & 0o7777)
                    changed += 1
        return changed

    def local_token(self) -> str:
        """The state token, created at the first call; the file is readable by its owner only."""
        return self._keep_token("local")

    def owner_token(self) -> str:
        """The token of the owner, who answers approvals; created and kept as the state token.

        It goes to no child process and into no client's configuration.
        """
        return self._keep_token("owner")

    def _keep_token(self, name: str) -> str:
        self.prepare()
        path = self.keys / f"{name}.token"
        if (token := self._read_token(path)) is not None:
            return token
        with storage_errors(path):
            self.keys.mkdir(mode=0o700, exist_ok=True)
            with hold_lock(self.keys / ".lock", mode=0o600):
                if (token := self._read_token(path)) is not None:
                    return token
                token = f"rtn_{name}_{secrets.token_urlsafe(32)}"
                replace_file(path, token.encode(), mode=0o600)
        return token

    def mesh_key(self) -> bytes:
        """The mesh key, with which the processes of this state sign traces; created at the first call."""
        self.prepare()
        return mesh_key(self.keys)

    def read_session(self, name: str) -> dict[str, Any] | None:
        """The value that `write_session` stored under a name; None if there is none. Raises StateDamagedError
        for a file with other content.
        """
        path = self._session_file(name)
        try:
            session = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, orjson.JSONDecodeError) as error:
            raise StateDamagedError(str(path), str(error), remedy="remove the file") from error
        if not isinstance(session, dict) or not isinstance(session.get("turns"), list):
            raise StateDamagedError(str(path), "it holds no conversation", remedy="remove the file")
        return session

    def write_session(self, name: str, value: Mapping[str, Any]) -> None:
        """Keep a conversation under a name; only its owner can read the file."""
        path = self._session_file(name)
        with storage_errors(path):
            self.sessions.mkdir(mode=0o700, exist_ok=True)
            replace_file(path, orjson.dumps(value), mode=0o600)

    def _session_file(self, name: str) -> Path:
        # a name may hold colons, which not every file system takes
        return self.sessions / f"{name.replace(':', '%3A')}.json"

    @staticmethod
    def _read_token(path: Path) -> str | None:
        try:
            token = path.read_text("ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateDamagedError(
                str(path), str(error), remedy="remove the file; a new one is created"
            ) from error
        if len(token) < 32:
            raise StateDamagedError(
                str(path), "it contains no token", remedy="remove the file; a new one is created"
            )
        return token

    def read_hub(self) -> HubAddress | None:
        """The running hub, or None.

        A file left by a killed hub yields None, also when another process has reused its pid (detected by
        process start time, where the system reports it). Raises StateDamagedError.
        """
        try:
            facts = orjson.loads(self.hub_file.read_bytes())
            birth = facts.get("birth")
            url, pid = str(facts["url"]), int(facts["pid"])
            hub = HubAddress(
                url,
                pid,
                str(facts.get("started_at", "")),
                bool(facts.get("ready", True)),
                bool(facts.get("log", False)),
                birth,
                int(facts.get("processes", 1)),
            )
            if not 0 < hub.pid < _PIDS:
                raise ValueError(f"pid {hub.pid}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateDamagedError(
                str(self.hub_file),
                f"it contains no hub address ({error})",
                remedy="remove the file, then start the hub: retinue hub",
            ) from error
        return hub if is_process(hub.pid, birth) else None

    def write_hub(
        self, url: str, *, ready: bool = True, writes_log: bool = False, processes: int = 1
    ) -> None:
        """Record this process as the hub at ``url``; ``processes`` of its children serve, if not one."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        address: dict[str, object] = {
            "url": url,
            "pid": os.getpid(),
            "started_at": started_at,
            "ready": ready,
            "log": writes_log,
        }
        if (birth := _start_time_of(os.getpid())) is not None:
            address["birth"] = birth
        if processes != 1:
            address["processes"] = processes
        with storage_errors(self.hub_file):
            replace_file(self.hub_file, orjson.dumps(address), mode=0o600)

    def forget_hub(self) -> None:
        """Remove the record of `write_hub`, unless another process has replaced it."""
        with suppress(OSError, ValueError, AttributeError):
            if orjson.loads(self.hub_file.read_bytes()).get("pid") != os.getpid():
                return
        with suppress(NotADirectoryError):
            self.hub_file.unlink(missing_ok=True)

    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the lock file, which change when the folder is created again; None without the
        file.

        Valid while a process holds the lock, because an open file keeps its inode, while a removed folder's
        inode may be reused at once.
        """
        try:
            status = (self.root / _LOCK).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def own(self) -> Iterator[None]:
        """Hold the lock of the state as its only writer.

        Raises HubRunningError when another process holds it, StateError for a folder that cannot be written.
        """
        self.prepare()
        lock = FileLock(self.root / _LOCK, mode=0o600)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            hub = self.read_hub()
            raise HubRunningError(
                hub.url if hub else "(still starting)", hub.pid if hub else 0, str(self.root)
            ) from None
        except OSError:
            with storage_errors(self.root / _LOCK):
                raise
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def lead(self, within_s: float) -> Iterator[None]:
        """Hold the lock of the leading process of a hub with several, as its only writer.

        The lock of `own` is held by their parent. A leader that has just ended may hold this one for a
        moment; raises StateError if it does so for longer than ``within_s``.
        """
        lock = FileLock(self.root / _LEADER_LOCK, mode=0o600)
        try:
            with storage_errors(self.root / _LEADER_LOCK):
                lock.acquire(timeout=within_s)
        except Timeout:
            raise StateError(
                f"another process leads the hub of {self.root}", remedy="wait until it has ended"
            ) from None
        try:
            yield
        finally:
            lock.release()


def find_hub_url(state: State) -> str | None:
    """Url of the hub for a process of this state: ``RETINUE_HUB``, else the running hub, else None."""
    if url := os.environ.get(HUB_VARIABLE):
        return url
    hub = state.read_hub()
    return None if hub is None else hub.url


def is_process(pid: int, birth: int | None) -> bool:
    """Whether the process runs and started at ``birth``, where that is known."""
    process = _read_process(pid)
    if process is None:
        return _is_alive(pid)
    state, start_time = process
    # a zombie has ended; in a container without an init process its status is never read
    return state not in ("Z", "X") and birth in (None, start_time)


def _start_time_of(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (Linux); None where the system does not report it."""
    process = _read_process(pid)
    return None if process is None else process[1]


def _read_process(pid: int) -> tuple[str, int] | None:
    """State and start time of a process (Linux); None where the system does not report them."""
    try:
        # the process name, in parentheses, may contain spaces and parentheses
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
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
