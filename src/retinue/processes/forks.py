"""A fork server: a process that has imported the program forks others on request, and tells how each ends.

The client and the server have a socket pair of packets (``SOCK_SEQPACKET``). A request is one packet with
descriptors: a file with arguments, environment and numbers as JSON, the end of a pipe, and the descriptors
that the new process gets. The server writes two numbers to the pipe: the id of the process, and its wait
status when it has ended. A pipe that ends before means that the server has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

_PACKET = b"fork"
_MAX_DESCRIPTORS = 16
_NUMBER = struct.Struct("i")
_WAKEUPS_BYTES = 1024


def request_fork(
    control: socket.socket,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Mapping[int, int],
) -> int:
    """Ask for a process; returns the pipe from which `read_number` reads its id and its wait status.

    ``descriptors`` are those that the process gets, by their numbers there. Raises OSError if the server has
    ended.
    """
    request = [[*arguments], {**environment}, [*descriptors]]
    pipe, end = os.pipe()
    try:
        file = os.memfd_create("retinue-fork")  # a packet has no room for an environment
        try:
            os.write(file, json.dumps(request).encode())
            socket.send_fds(control, [_PACKET], [file, end, *descriptors.values()])
        finally:
            os.close(file)
    except BaseException:
        os.close(pipe)
        raise
    finally:
        os.close(end)
    return pipe


def read_number(pipe: int) -> int | None:
    """The next number of a process, for which the caller waits; None if the server has ended."""
    content = os.read(pipe, _NUMBER.size)
    return _NUMBER.unpack(content)[0] if content else None


def serve_forks(control: socket.socket) -> list[str]:
    """Fork on request until the client has closed its end, then exit.

    Returns in each new process, with its arguments. The process leads a session and has the environment and
    the descriptors of its request. Its standard input is empty unless there is a descriptor of number 0.
    The server must have no threads.
    """
    pipes: dict[int, int] = {}
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        readable, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in readable:
            os.read(woken, _WAKEUPS_BYTES)
            _tell_ends(pipes)
        if control.fileno() in readable:
            packet, received = _receive(control)
            if not packet:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _close((woken, waker, *pipes.values()))
                return _take(received)
            pipes[pid] = received.pop(1)
            _close(received)
            _tell(pipes[pid], pid)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    try:
        packet, received, _, _ = socket.recv_fds(control, len(_PACKET), _MAX_DESCRIPTORS)
    except ConnectionError:
        return b"", []
    return packet, received


def _tell_ends(pipes: dict[int, int]) -> None:
    while pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = pipes.pop(pid)
        _tell(pipe, status)
        os.close(pipe)


def _tell(pipe: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody asks for this process any more
        os.write(pipe, _NUMBER.pack(number))


def _take(received: Sequence[int]) -> list[str]:
    """Make this process the one that was asked for."""
    os.setsid()
    file, _, *others = received
    arguments, environment, numbers = json.loads(os.pread(file, os.fstat(file).st_size, 0))
    # moved above all numbers first, because the number that a received one has may be meant for another; the
    # limit of open files may be low
    free = max(2, *received, *numbers) + 1
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, free) for number in others]
    _close(received)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=number <= 2)
        os.close(descriptor)
    if 0 not in numbers:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    os.environ.clear()
    os.environ.update(environment)
    return list(arguments)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
