"""The guard around probed functions refuses each change outside, and nothing happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retinue_testwriter import inside

INSIDE = Path(inside.__file__).parent

SCRIPT = """
import ctypes, os, pathlib, shutil, signal, socket, sqlite3, sys, tempfile
sys.path.insert(0, {inside!r})
from guard import Guard, Refused
outside = pathlib.Path({outside!r})
guard = Guard(os.getcwd())
open("mine", "w").close()
fd = os.open(outside, os.O_RDONLY)
guard.raised = True
try:
    {code}
except Refused as refusal:
    answer = "refused: " + str(refusal)
except Exception as error:
    answer = "error: " + repr(error)
else:
    answer = "done"
guard.raised = False
if guard.refusal and not answer.startswith("refused"):
    answer = "refused: " + guard.refusal + ", " + answer
print(answer)
"""


def run(code: str, tmp_path: Path) -> str:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "theirs").write_text("precious")
    script = SCRIPT.format(inside=str(INSIDE), outside=str(outside), code=code)
    done = subprocess.run(
        [sys.executable, "-I", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in outside.iterdir()] == ["theirs"]
    assert (outside / "theirs").read_text() == "precious"
    return done.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "open(outside / 'new', 'w')",
        "os.open(outside / 'theirs', os.O_WRONLY | os.O_TRUNC)",
        "sqlite3.connect(outside / 'new.db').execute('create table a (b)')",
        "sqlite3.connect(f'file:{outside}/new.db', uri=True).execute('create table a (b)')",
        "os.rename('mine', outside / 'theirs')",
        "os.replace('mine', outside / 'theirs')",
        "os.rename(outside / 'theirs', 'mine')",
        "os.rename('mine', 'theirs', dst_dir_fd=fd)",
        "os.link('mine', outside / 'new')",
        "os.link(outside / 'theirs', 'new')",
        "os.symlink('mine', outside / 'new')",
        "os.symlink(outside, 'away')",
        "os.symlink('../outside/theirs', 'away')",
        "shutil.move('mine', outside / 'theirs')",
        "shutil.copyfile('mine', outside / 'theirs')",
        "shutil.rmtree(outside)",
        "os.remove(outside / 'theirs')",
        "os.remove('theirs', dir_fd=fd)",
        "os.mkdir('new', dir_fd=fd)",
        "os.truncate(outside / 'theirs', 0)",
        "os.chmod(outside / 'theirs', 0)",
        "os.setxattr(outside / 'theirs', 'user.a', b'b')",
        "os.mkfifo(outside / 'new')",
        "os.mkfifo('pipe')",
        "os.mknod(outside / 'new')",
        "__import__('posix').mkfifo(outside / 'new')",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', 9))",
        "socket.create_connection(('127.0.0.1', 9))",
        "ctypes.CDLL(None).system(b'touch new')",
        "__import__('_posixsubprocess').fork_exec()",
        "__import__('subprocess').run(['true'])",
        "os.fork()",
        "os.system('true')",
        "os.kill(os.getpid(), 0)",
        "signal.pidfd_send_signal(0, 0)",
        "__import__('syslog').syslog('x')",
        "sqlite3.connect(':memory:').execute(f\"attach '{outside}/new.db' as new\")",
        "sqlite3.connect(':memory:').execute('attach ? as new', (str(outside / 'new.db'),))",
        "sqlite3.connect(':memory:').execute('attach ? as new', (f'file:{outside}/new.db',))",
        "sqlite3.connect(':memory:').execute('vacuum into ?', (str(outside / 'new.db'),))",
        "sqlite3.connect(':memory:').execute(f\"vacuum into '{outside}/new.db'\")",
        "sqlite3.Connection(':memory:').execute(f\"vacuum into '{outside}/new.db'\")",
        "__import__('_sqlite3').connect(':memory:').execute(f\"vacuum into '{outside}/new.db'\")",
        "sqlite3.connect('own.db', factory=type('C', (sqlite3.Connection,), {}))"
        ".execute(f\"vacuum into '{outside}/new.db'\")",
        "__import__('readline').write_history_file(str(outside / 'new'))",
        "__import__('readline').append_history_file(1, str(outside / 'theirs'))",
        "__import__('inspect').unwrap(os.mkfifo)(outside / 'new')",
    ],
)
def test_what_reaches_outside_is_refused(code: str, tmp_path: Path) -> None:
    assert run(code, tmp_path).startswith("refused: ")


@pytest.mark.parametrize(
    "code",
    [
        "open('new', 'w').write('x')",
        "open(outside / 'theirs').read()",
        "sqlite3.connect(':memory:').execute('create table a (b)')",
        "sqlite3.connect('own.db').execute('create table a (b)')",
        "os.rename('mine', 'other')",
        "os.symlink('mine', 'other')",
        "os.mkdir('deep'); os.symlink('../mine', 'deep/link')",
        "shutil.copyfile(outside / 'theirs', 'copy')",
        "tempfile.TemporaryDirectory(dir='.').cleanup()",
        "os.makedirs('a/b'); shutil.rmtree('a')",
        "__import__('asyncio').run(__import__('asyncio').sleep(0))",
        "sqlite3.connect('own.db').execute('attach \":memory:\" as other')",
        "sqlite3.connect('own.db').execute(\"attach 'second.db' as other\")",
        "sqlite3.connect('own.db').execute(\"vacuum into 'copy.db'\")",
        "sqlite3.connect('own.db').execute('vacuum')",
        "assert isinstance(sqlite3.connect(':memory:'), sqlite3.Connection)",
    ],
)
def test_what_stays_inside_is_done(code: str, tmp_path: Path) -> None:
    assert run(code, tmp_path) == "done"
