"""Prevents probed code from changing files, starting programs and using the network.

A function called with generated arguments may delete a file that they happen to name. An audit hook stops it
before it does; functions of the standard library that raise no audit event are replaced. Code that means harm
gets around both. Standard library only.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

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
    "signal": ("pidfd_send_signal",),
    "_signal": ("pidfd_send_signal",),
}
"""Functions that act without an audit event, by module."""

_MEMORY = ("", ":memory:", b"", b":memory:", "file::memory:")


class Refused(BaseException):
    """The probed code attempted a side effect; not an Exception, so that the code does not catch it."""


class Guard:
    """An audit hook, active while ``raised`` is true; files may be changed in ``folder`` only."""

    def __init__(self, folder: str = "") -> None:
        self.raised = False
        self._folder = Path(folder).resolve() if folder else None
        sys.addaudithook(self._look)
        for module, names in _SILENT.items():
            loaded = sys.modules.get(module) or __import__(module)
            for name in names:
                self._replace(loaded, name)

    def _replace(self, module: ModuleType, name: str) -> None:
        original: Callable[..., Any] | None = getattr(module, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if self.raised:
                raise Refused("does " + name)
            return original(*arguments, **named)

        setattr(module, name, guarded)

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
            raise Refused("writes files")
        if event == "sqlite3.connect":
            if arguments[0] not in _MEMORY and not self._is_inside(arguments[0]):
                raise Refused("opens a database")
        elif event in CHANGING_EVENTS:
            if not self._changes_inside(event, arguments):
                raise Refused("does " + event)
        elif event in REFUSED_EVENTS:
            raise Refused("does " + event)

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


def _below(path: Any, folder: int) -> Any:
    """A path with the folder that its descriptor stands for; None where the system does not tell."""
    if folder == -1 or not isinstance(path, (str, bytes, os.PathLike)):
        return path
    try:
        return Path(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))  # noqa: PTH115
    except OSError:
        return None
