"""Prevents probed code from changing files, starting programs and using the network.

A function called with generated arguments may delete a file that they happen to name. An audit hook stops it
before it does. Standard library only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
REFUSED_EVENTS = frozenset(
    {
        "builtins.input",
        "os.chdir",
        "os.chmod",
        "os.chown",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
        "os.link",
        "os.mkdir",
        "os.posix_spawn",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.spawn",
        "os.symlink",
        "os.system",
        "os.truncate",
        "os.utime",
        "pty.spawn",
        "shutil.rmtree",
        "shutil.copyfile",
        "shutil.move",
        "signal.pthread_kill",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "subprocess.Popen",
        "urllib.Request",
        "webbrowser.open",
    }
)


class Refused(BaseException):
    """The probed code attempted a side effect; not an Exception, so that the code does not catch it."""


class Guard:
    """An audit hook, active while ``raised`` is true; files may be written in ``folder`` only."""

    def __init__(self, folder: str = "") -> None:
        self.raised = False
        self._folder = Path(folder).resolve() if folder else None
        sys.addaudithook(self._look)

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
        if event in REFUSED_EVENTS and not (arguments and self._is_inside(arguments[0])):
            raise Refused("does " + event)

    def _is_inside(self, path: str) -> bool:
        if self._folder is None or not isinstance(path, (str, bytes, os.PathLike)):
            return False
        return Path(os.fsdecode(path)).resolve().is_relative_to(self._folder)
