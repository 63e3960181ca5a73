"""Runs an MCP server as a child and notes what it receives: ``noting_server FILE -- COMMAND``.

Each line of standard input is appended to FILE before it is passed on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path


def pass_on(file: Path, server: subprocess.Popen[bytes]) -> None:
    """Note each line of standard input and give it to the server, until either ends."""
    assert server.stdin is not None
    with file.open("ab", buffering=0) as notes, suppress(BrokenPipeError):
        for line in sys.stdin.buffer:
            notes.write(line)
            server.stdin.write(line)
            server.stdin.flush()
    with suppress(BrokenPipeError):
        server.stdin.close()


if __name__ == "__main__":
    child = subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE)
    threading.Thread(target=pass_on, args=(Path(sys.argv[1]), child), daemon=True).start()
    # at once, because the thread waits for a line that may never come
    os._exit(child.wait())
