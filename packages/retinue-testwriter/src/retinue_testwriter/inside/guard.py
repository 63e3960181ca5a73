"""Prevents probed code from changing files, starting programs and using the network.

A function called with generated arguments may delete a file that they happen to name. An audit hook stops it
before it does; functions of the standard library that raise no audit event are replaced, and an authorizer on
each SQLite connection denies files that a statement opens. Code that means harm gets around all of them.
Standard library only.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING_EVENTS = {
    "os.chdir": 1,
    "os.chflags": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.link": 2,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.removexattr": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.setxattr": 1,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.utime": 1,
    "shutil.move": 2,
    "shutil.rmtree": 1,
}
"""Events that change files, with the number of paths at the front of their arguments."""

_DIR_FD_AT = {
    "os.chmod": 2,
    "os.chown": 3,
    "os.link": 2,
    "os.mkdir": 2,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.symlink": 2,
    "os.utime": 3,
}
"""Where the arguments hold the descriptors of the folders of relative paths, or -1."""

REFUSED_EVENTS = frozenset(
    {
        "builtins.input",
        "ctypes.call_function",
        "ctypes.dlopen",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
        "pty.spawn",
        "signal.pthread_kill",
        "sqlite3.enable_load_extension",
        "sqlite3.load_extension",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.sendmsg",
        "socket.sendto",
        "subprocess.Popen",
        "syslog.syslog",
        "urllib.Request",
        "webbrowser.open",
    }
)
"""Events that act on the world outside, wherever the folder is."""

_SILENT = {
    "_posixsubprocess": ("fork_exec",),
    "os": ("chroot", "mkfifo", "mknod", "pidfd_send_signal"),
    "posix": ("chroot", "mkfifo", "mknod", "pidfd_send_signal"),
    "readline": ("append_history_file", "write_history_file"),
    "signal": ("pidfd_send_signal",),
    "_signal": ("pidfd_send_signal",),
}
"""Functions that act without an audit event, by module."""

_SQLITE_OK, _SQLITE_DENY, _SQLITE_ATTACH = 0, 1, 24
_FACTORY_AT = 5
"""The place of ``factory`` in the arguments of ``sqlite3.connect``."""

_MEMORY = ("", ":memory:", b"", b":memory:", "file::memory:")


class Refused(BaseException):
    """The probed code attempted a side effect; not an Exception, so that the code does not catch it."""


class Guard:
    """An audit hook, active while ``raised`` is true; files may be changed in ``folder`` only.

    ``refusal`` is the first side effect that was refused since the guard was raised, "" for none. It tells
    what the code under probe does not: it may handle the error of a denied statement, or any other.
    """

    def __init__(self, folder: str = "") -> None:
        self.refusal = ""
        self._raised = False
        self._folder = Path(folder).resolve() if folder else None
        sys.addaudithook(self._look)
        for module, names in _SILENT.items():
            loaded = _import(module)
            for name in names if loaded else ():
                self._replace(loaded, name)
        self._authorize_databases()

    @property
    def raised(self) -> bool:
        return self._raised

    @raised.setter
    def raised(self, raised: bool) -> None:
        if raised:
            self.refusal = ""
        self._raised = raised

    def _refuse(self, what: str) -> NoReturn:
        self.refusal = self.refusal or what
        raise Refused(what)

    def _replace(self, module: Any, name: str) -> None:
        original: Callable[..., Any] | None = getattr(module, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if self.raised:
                self._refuse("does " + name)
            return original(*arguments, **named)

        del guarded.__wrapped__  # inspect.unwrap would find the original
        setattr(module, name, guarded)

    def _authorize_databases(self) -> None:
        """Put an authorizer on each SQLite connection to come, because ATTACH raises no audit event."""
        sqlite = _import("sqlite3")
        if sqlite is None:
            return
        authorize, original = self._authorize, sqlite.connect

        class Connection(sqlite.Connection):  # type: ignore[name-defined, misc]
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                self.set_authorizer(authorize)

        Connection.__module__, Connection.__qualname__ = "sqlite3", "Connection"

        def connect(*arguments: Any, **named: Any) -> Any:
            if len(arguments) <= _FACTORY_AT:
                named.setdefault("factory", Connection)
            connection = original(*arguments, **named)
            connection.set_authorizer(authorize)
            return connection

        for module in (sqlite, sys.modules["sqlite3.dbapi2"], sys.modules["_sqlite3"]):
            vars(module).update(connect=connect, Connection=Connection)

    def _authorize(self, action: int, target: str | None, *_others: Any) -> int:
        """Deny statements that open a file outside; VACUUM INTO attaches its file as well."""
        if not self._raised or action != _SQLITE_ATTACH:
            return _SQLITE_OK
        if target in _MEMORY or self._is_inside(target):
            return _SQLITE_OK
        self.refusal = self.refusal or "attaches a database"
        return _SQLITE_DENY

    def _look(self, event: str, arguments: Any) -> None:
        if not self.raised:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
            writes = writes or (mode is None and isinstance(flags, int) and bool(flags & WRITING))
            if not writes or path == os.devnull or isinstance(path, int):
                return
            if self._is_inside(path):
                return
            self._refuse("writes files")
        if event == "sqlite3.connect":
            if arguments[0] not in _MEMORY and not self._is_inside(arguments[0]):
                self._refuse("opens a database")
        elif event in CHANGING_EVENTS:
            if not self._changes_inside(event, arguments):
                self._refuse("does " + event)
        elif event in REFUSED_EVENTS:
            self._refuse("does " + event)

    def _changes_inside(self, event: str, arguments: Any) -> bool:
        """Whether everything that an event changes is in the folder, also where a link leads."""
        paths = list(arguments[: CHANGING_EVENTS[event]])
        if event in _DIR_FD_AT:
            folders = arguments[_DIR_FD_AT[event] :]
            # a link is made in the folder of its second path
            paths[-len(folders) :] = map(_below, paths[-len(folders) :], folders)
        if event == "os.symlink" and isinstance(paths[0], (str, bytes)) and paths[1] is not None:
            # what a link holds is relative to the folder of the link
            paths[0] = Path(os.fsdecode(paths[1])).parent / os.fsdecode(paths[0])
        return all(self._is_inside(path) for path in paths)

    def _is_inside(self, path: Any) -> bool:
        if self._folder is None or not isinstance(path, (str, bytes, os.PathLike)):
            return False
        text = os.fsdecode(path)
        if text.startswith("file:"):
            return False  # an SQLite url
        return Path(text).resolve().is_relative_to(self._folder)


def _import(name: str) -> ModuleType | None:
    """The module; None where this Python was built without it."""
    try:
        return import_module(name)
    except ImportError:
        return None


def _below(path: Any, folder: int) -> Any:
    """A path with the folder that its descriptor stands for; None where the system does not tell."""
    if folder == -1 or not isinstance(path, (str, bytes, os.PathLike)):
        return path
    try:
        return Path(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))  # noqa: PTH115
    except OSError:
        return None
