"""A fork server starts processes also where few files may be open."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import os, resource, socket
from retinue.processes.forks import read_number, request_fork, serve_forks

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork() == 0:
    ours.close()
    arguments = serve_forks(theirs)
    for number in range(4, 14):
        os.write(number, b"%s%d " % (arguments[0].encode(), number))
    os._exit(5)
theirs.close()
reading, writing = os.pipe()
# most of these numbers are those under which the server gets the descriptors
pipe = request_fork(ours, ["to"], {}, dict.fromkeys(range(4, 14), writing))
os.close(writing)
with os.fdopen(reading) as written:
    print(written.read())
assert read_number(pipe) > 0
print(os.waitstatus_to_exitcode(read_number(pipe)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there are fork servers on Linux only")
def test_a_fork_gets_its_descriptors_under_their_numbers_with_a_low_limit_of_open_files() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout.split() == [*(f"to{number}" for number in range(4, 14)), "5"]
