"""The place of one process in its hub, which its parent passes to it in the environment."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from retinue.core.call import new_id
from retinue.storage.state import HUB_PLACE_VARIABLE

LEADER = 0
"""The number of the process that runs everything that one process of a hub runs."""

_ENDS = tuple(character.encode() for character in "0123456789abcdef")
"""The last characters of names that a process makes: digits in hex, which end names of any kind."""


@dataclass(frozen=True, slots=True)
class HubPlace:
    """Process ``index`` of ``count``; ``folder`` holds the socket of each process.

    ``hub_id`` names the hub in traces. The others are descriptors that the parent has opened: ``listener`` of
    the hub's address, ``inner`` of the socket at which the other processes reach this one, ``board`` of what
    all processes share in memory.
    """

    index: int
    count: int
    folder: Path
    hub_id: str
    listener: int
    inner: int
    board: int

    @property
    def is_leader(self) -> bool:
        return self.index == LEADER

    def socket_of(self, index: int) -> str:
        """The path of the socket of a process."""
        return str(socket_path(self.folder, index))

    def as_variable(self) -> str:
        """The value of `HUB_PLACE_VARIABLE`."""
        facts = {
            "index": self.index,
            "count": self.count,
            "folder": str(self.folder),
            "hub_id": self.hub_id,
            "listener": self.listener,
            "inner": self.inner,
            "board": self.board,
        }
        return orjson.dumps(facts).decode()

    def take_listener(self) -> socket.socket:
        """The socket of the hub's address, which all processes of the hub accept from."""
        return _take(self.listener)

    def take_inner(self) -> socket.socket:
        """The socket at which the other processes reach this one."""
        return _take(self.inner)


def take_place(environ: dict[str, str] | os._Environ[str] = os.environ) -> HubPlace | None:
    """The place of this process; None if it is no process of a hub with several. Removes the variable."""
    text = environ.pop(HUB_PLACE_VARIABLE, None)
    if text is None:
        return None
    facts: Mapping[str, Any] = orjson.loads(text)
    return HubPlace(**{**facts, "folder": Path(facts["folder"])})


def owner_of(name: bytes, count: int) -> int:
    """The process that has what this random name means: a chain of calls, a task, a suspended call."""
    return crc32(name) % count


def own_names(place: HubPlace, make: Callable[[], str] = new_id) -> Callable[[], str]:
    """Makes names that tell every process that this one has what they mean.

    Their last character is chosen so. To make names until one fits would take as many as there are processes.
    """

    def make_own() -> str:
        while True:
            begin = make()[:-1]
            hashed = crc32(begin.encode())
            for end in _ENDS:
                if crc32(end, hashed) % place.count == place.index:
                    return begin + end.decode()

    return make_own


def make_task_id() -> str:
    """The id of a task of A2A."""
    return str(uuid.uuid4())


def owns_name(place: HubPlace, name: str) -> bool:
    """Whether this process has what a name means."""
    return owner_of(name.encode(), place.count) == place.index


def socket_path(folder: Path, index: int) -> Path:
    """The socket of a process; short, because a path of a socket has at most 100 bytes."""
    return folder / f"{index}.sock"


def _take(descriptor: int) -> socket.socket:
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener
