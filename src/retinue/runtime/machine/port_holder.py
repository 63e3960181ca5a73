"""Finds the program that listens on a port of this machine, where the system shows it (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"
_MAX_CHARACTERS = 60


def find_port_holder(port: int, proc: Path = Path("/proc")) -> str | None:
    """The command and pid of a program that listens on ``port``; None where it cannot be seen.

    Programs of other users are visible to root only.
    """
    sockets = {f"socket:[{inode}]" for inode in _list_inodes(port, proc)}
    if not sockets:
        return None
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):
            if any(_target_of(entry) in sockets for entry in (process / "fd").iterdir()):
                return f"{_read_command(process)} (pid {process.name})"
    return None


def _list_inodes(port: int, proc: Path) -> Iterator[str]:
    """The inodes of the sockets that listen on a port, of IPv4 and IPv6."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _target_of(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""  # closed meanwhile


def _read_command(process: Path) -> str:
    words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    if words and words[0]:
        words[0] = Path(words[0]).name
    text = " ".join("".join(c if c.isprintable() else " " for c in " ".join(words)).split())
    text = text or (process / "comm").read_text().strip()
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
