from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
import uvloop

from retinue.processes.limited import CommandResult, ProgramLimits, clean_environment, run_command

GENEROUS = ProgramLimits(wall_s=60)


async def run_python(
    code: str, folder: Path, limits: ProgramLimits = GENEROUS, stdin: bytes = b""
) -> CommandResult:
    return await run_command([sys.executable, "-I", "-c", code], folder=folder, limits=limits, stdin=stdin)


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def wait_until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(60):
        while any(is_alive(pid) for pid in pids):
            await asyncio.sleep(0.01)


def list_pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def read_pids(file: Path, count: int) -> list[int]:
    """The pids that a program writes to a file, once all of them are there."""
    async with asyncio.timeout(60):
        while True:
            pids = list_pids(file)
            if len(pids) == count:
                return pids
            await asyncio.sleep(0.01)


FORKING = """
import os, time
def note():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
note()
if os.fork() == 0:
    os.setsid()          # leaves the session and the process group
    note()
    if os.fork() == 0:
        note()
        time.sleep(600)
    time.sleep(600)
time.sleep(600)
"""


async def test_gives_output_exit_code_and_duration(tmp_path: Path) -> None:
    result = await run_python(
        "import sys; print(sys.stdin.read()); sys.stderr.write('oh'); sys.exit(3)", tmp_path, stdin=b"in"
    )
    assert (result.exit_code, result.signal, result.limit) == (3, None, None)
    assert (result.stdout, result.stderr) == (b"in\n", b"oh")
    assert result.duration_s > 0
    assert not result.ok


async def test_runs_in_the_folder_with_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    result = await run_command(
        [sys.executable, "-I", "-c", "import os; print(os.getcwd()); print(sorted(os.environ))"],
        folder=tmp_path,
        environment={"EXTRA": "1"},
    )
    folder, names = result.stdout.decode().splitlines()
    assert folder == str(tmp_path)
    assert names == str(sorted(clean_environment(tmp_path, {"EXTRA": "1"})))


async def test_takes_arguments_literally_without_a_shell(tmp_path: Path) -> None:
    result = await run_command(
        [sys.executable, "-c", "import sys; print(sys.argv[1])", "$(id); *"], folder=tmp_path
    )
    assert result.stdout == b"$(id); *\n"


async def test_a_program_that_cannot_start_exits_127_and_says_why(tmp_path: Path) -> None:
    result = await run_command([str(tmp_path / "missing")], folder=tmp_path)
    assert result.exit_code == 127
    assert b"missing" in result.stderr


async def test_tells_which_signal_ended_a_program(tmp_path: Path) -> None:
    result = await run_python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", tmp_path)
    assert (result.exit_code, result.signal, result.limit) == (None, signal.SIGSEGV, None)


@pytest.mark.parametrize(
    ("code", "limits", "limit"),
    [
        ("import time; time.sleep(600)", ProgramLimits(wall_s=0.4), "wall"),
        ("while True: pass", ProgramLimits(cpu_s=1), "cpu"),
        ("print('x' * 10**7)", ProgramLimits(output_bytes=1000), "output"),
        ("import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL);"
         "open('f', 'wb').write(b'x' * 10**6)", ProgramLimits(file_bytes=1000), "file_size"),
        ("import os, time\nfor _ in range(20):\n  if os.fork() == 0: time.sleep(600)\ntime.sleep(600)",
         ProgramLimits(processes=5), "processes"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)  # fmt: skip
async def test_names_the_limit_that_ended_a_program(
    tmp_path: Path, code: str, limits: ProgramLimits, limit: str
) -> None:
    result = await run_python(code, tmp_path, limits)
    assert result.limit == limit
    assert not result.ok


async def test_keeps_the_output_up_to_its_cap(tmp_path: Path) -> None:
    result = await run_python("print('x' * 10**6)", tmp_path, ProgramLimits(output_bytes=1000))
    assert result.stdout == b"x" * 1000


async def test_address_space_is_limited_in_the_program(tmp_path: Path) -> None:
    result = await run_python("bytearray(10**10)", tmp_path, ProgramLimits(memory_bytes=300 * 1024**2))
    assert result.exit_code == 1
    assert b"MemoryError" in result.stderr


async def test_memory_of_all_descendants_is_limited_together(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "for _ in range(4):\n"
        "  if os.fork() == 0:\n"
        "    block = bytearray(os.urandom(1) * (60 * 2**20)); time.sleep(600)\n"
        "time.sleep(600)"
    )
    result = await run_python(code, tmp_path, ProgramLimits(memory_bytes=150 * 1024**2, wall_s=30))
    assert result.limit == "memory"


async def test_open_files_are_limited(tmp_path: Path) -> None:
    result = await run_python(
        "[open('/dev/null') for _ in range(50)]", tmp_path, ProgramLimits(open_files=20)
    )
    assert b"Too many open files" in result.stderr


async def test_a_timeout_kills_descendants_that_left_the_session(tmp_path: Path) -> None:
    running = asyncio.create_task(run_python(FORKING, tmp_path, ProgramLimits(wall_s=2.0)))
    pids = await read_pids(tmp_path / "pids", 3)
    assert (await running).limit == "wall"
    assert not any(is_alive(pid) for pid in pids)


async def test_cancelling_kills_every_descendant_first(tmp_path: Path) -> None:
    running = asyncio.create_task(run_python(FORKING, tmp_path))
    pids = await read_pids(tmp_path / "pids", 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(is_alive(pid) for pid in pids)


async def test_descendants_that_outlive_the_program_are_killed(tmp_path: Path) -> None:
    code = FORKING.replace(
        "\ntime.sleep(600)\n", "\nwhile len(open('pids').readlines()) < 3: time.sleep(0.01)\n"
    )
    result = await run_python(code, tmp_path)
    pids = list_pids(tmp_path / "pids")
    assert result.exit_code == 0
    assert not any(is_alive(pid) for pid in pids)


async def test_everything_dies_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(FORKING)
    starter = (
        "import asyncio, sys; from pathlib import Path; from retinue.processes.limited import run_command\n"
        "asyncio.run(run_command([sys.executable, '-I', 'forking.py'], folder=Path('.')))"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", starter, cwd=tmp_path)
    pids = await read_pids(tmp_path / "pids", 3)
    parent.kill()
    await parent.wait()
    await wait_until_gone(pids)


async def test_leaves_no_descriptor_open(tmp_path: Path) -> None:
    await run_python("pass", tmp_path)
    before = count_descriptors()
    for _ in range(3):
        await run_python("pass", tmp_path)
    assert count_descriptors() <= before


STOPPING = """
import os, signal, time
def note():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
note()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        note()
        while os.getppid() == int(open("pids").read().split()[0]):
            time.sleep(0.001)
        time.sleep(0.05)             # its parent has ended, so the keeper is its parent now
        os.kill(os.getppid(), signal.SIGSTOP)
        note()
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


async def test_a_program_that_stops_its_keeper_is_ended_with_all_it_started(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        result = await run_python(STOPPING, tmp_path, ProgramLimits(wall_s=1.5))
    assert result.limit == "wall"
    pids = list_pids(tmp_path / "pids")
    assert len(pids) == 3
    await wait_until_gone(pids)


async def test_a_program_that_stops_its_keeper_does_not_outlive_a_killed_starter(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from retinue.processes.limited import run_command\n"
        f"program = [sys.executable, '-I', '-c', {STOPPING!r}]\n"
        f"asyncio.run(run_command(program, folder=Path({str(tmp_path)!r})))\n"
    )
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", script, start_new_session=True)
    pids = await read_pids(tmp_path / "pids", 3)
    starter.kill()
    await starter.wait()
    await wait_until_gone(pids)


def test_a_program_runs_in_the_loop_of_hub_and_agents_as_well(tmp_path: Path) -> None:
    """uvloop takes fewer options for a process than asyncio."""
    assert uvloop.run(run_python("print(1)", tmp_path)).stdout == b"1\n"
