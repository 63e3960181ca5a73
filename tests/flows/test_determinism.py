"""What does not belong between the steps of a workflow in Python is found in its source."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from retinue.flows.determinism import Hint, find_hints
from retinue.flows.modules import load_workflows
from retinue.testing import run_workflow

HEAD = """
import asyncio, logging, os, random, subprocess, threading, time, uuid
import datetime as dates, random as chance
from datetime import datetime
from pathlib import Path
from time import time as clock

from retinue import Run, workflow

LOG = logging.getLogger(__name__)


def read(path):
    return open(path).read()


@workflow
async def flow(run: Run, names: list[str]):
"""

FOUND = {
    "run.now()": [
        "x = time.time()",
        "x = clock()",
        "x = datetime.now()",
        "x = dates.date.today()",
        "x = time.perf_counter()",
    ],
    "run.sleep(seconds)": ["x = time.sleep(1)", "await asyncio.sleep(1)"],
    "run.random()": [
        "x = random.random()",
        "x = chance.choice(names)",
        "x = uuid.uuid4()",
        "x = os.urandom(8)",
        "from secrets import token_hex; x = token_hex()",
        "import random as r; x = [r.randint(1, 2) for _ in names]",
    ],
    "run.step(function)": [
        "x = open('x')",
        "x = Path('x').read_text()",
        "x = os.listdir('.')",
        "x = os.environ.get('HOME')",
        "x = subprocess.run(['true'])",
        "import requests; x = requests.get('http://x')",
        "from urllib.request import urlopen; x = urlopen('http://x')",
    ],
    "run.gather(*steps)": ["await asyncio.gather(run.call('a'))", "threading.Thread(target=read).start()"],
    "await before": ["run.call('a')", "run.options(retry=2).step(read)", "run.log('a')"],
    "timeout_s": ["async with asyncio.timeout(1): pass"],
    "run.log(text)": ["print(names)", "logging.info('x')", "LOG.warning('x')"],
    "sorted(…)": [
        "x = [await run.call(name) for name in set(names)]",
        "x = await run.gather(*(run.call(name) for name in {'a', 'b'}))",
    ],
}
NOT_FOUND = [
    "x = await run.now()",
    "x = lambda: time.time()",
    "x = await run.step(random.random)",
    "x = await run.step(lambda: uuid.uuid4().hex)",
    "x = random.Random(7)",
    "x = os.path.join('a', 'b')",
    "x = datetime(2026, 1, 1)",
    "x = [name for name in sorted(set(names))]",
    "x = read('x')",
    "time = await run.now(); x = time.time()",
    "x = names.open()",
    "x = [run.call('a')]; await run.gather(*x)",
    "run.undo('a', {})",
]


def inspect_line(folder: Path, line: str) -> list[Hint]:
    file = folder / "inspected_flows.py"
    file.write_text(f"{HEAD}    {line}\n")
    (flow,) = load_workflows(str(file))
    return find_hints(flow)


@pytest.mark.parametrize(("remedy", "line"), [(remedy, line) for remedy in FOUND for line in FOUND[remedy]])
def test_what_differs_when_the_function_is_begun_again_is_found(
    remedy: str, line: str, tmp_path: Path
) -> None:
    (hint,) = inspect_line(tmp_path, line)
    assert remedy in hint.remedy
    assert (Path(hint.file).name, hint.line) == ("inspected_flows.py", HEAD.count("\n") + 1)
    called = f"    {line}"[hint.column - 1 :]
    assert called.startswith((hint.subject.removesuffix("()"), "set(", "{"))


@pytest.mark.parametrize("line", NOT_FOUND)
def test_what_is_the_same_each_time_or_in_a_step_is_not_found(line: str, tmp_path: Path) -> None:
    assert inspect_line(tmp_path, line) == []


async def test_a_test_of_a_workflow_warns_at_the_line_of_the_call(tmp_path: Path) -> None:
    file = tmp_path / "warned_flows.py"
    file.write_text(HEAD + "    print(names)\n")
    (flow,) = load_workflows(str(file))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (await run_workflow(flow, {"names": []})).status == "done"
    (warning,) = caught
    assert str(warning.message).endswith("is begun: use await run.log(text)")
    assert (Path(warning.filename).name, warning.lineno) == (file.name, HEAD.count("\n") + 1)
