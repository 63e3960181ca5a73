"""The digest of a workflow's source is the same for each version of Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retinue.flows import source_digest
from retinue.flows.source_digest import digest_source
from tests.packages.test_interpreters import VERSIONS, find_interpreter

SOURCE = '''
"""What the file is for."""
from __future__ import annotations

import asyncio as loop
from . import near


@decorate(1, *("a",), **{"b": b"\\xff", "c": None})
class Thing(Base, metaclass=Meta):
    """A class."""
    field: int = 0x10
    other: "Thing | None"

    def method(self, a, /, b=1.5, *args: int, c: str = "x", **more) -> str:
        """A method."""
        global STATE
        del self.field
        return f"{a!r:>{b}} and {c=} {more:}" f"é\\N{SNOWMAN}" "plain" + u"old"


async def nightly(run, names):
    """A workflow."""
    if (n := len(names)) > 1_000 or not names:
        raise ValueError(n) from None
    async with run.lock() as lock, lock:
        values = [await run.call(name) async for name in names if name]
    for index, value in enumerate(values):
        while index:
            index -= 1
            continue
        else:
            break
    try:
        assert values, "none"
    except* (KeyError, ValueError) as group:
        pass
    finally:
        first, *rest = values
    match first:
        case {"kind": "a", **others} if others:
            yield {*rest}
        case [1, -2.5, *_] | Thing(field=3):
            yield {name: value for name, value in others.items()}
        case None | True:
            yield lambda x, *y: x @ y if x < 1j else ...
        case _:
            nonlocal_ = values[1:2, ::3], ~n, 10**400, "\\udc80"
    return


type_ = print(*SOURCE, sep="")
'''
GOLDEN = "sha256:82ae189141fa5931d361ecc210ba32cc0ee6750eac4625165e0d2c20af33bc2a"


def test_the_digest_is_the_recorded_one() -> None:
    assert digest_source(SOURCE) == GOLDEN


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_of_python_finds_the_recorded_digest(version: str, tmp_path: Path) -> None:
    python = find_interpreter(version)
    if python is None:
        pytest.skip(f"NOT TESTED, because python{version} is neither on PATH nor in ~/.pyenv/versions")
    file = tmp_path / "source.py"
    file.write_text(SOURCE)
    code = (
        "import runpy, sys\n"
        "module = runpy.run_path(sys.argv[1])\n"
        "print(module['digest_source'](open(sys.argv[2], encoding='utf-8').read()))"
    )
    command = [python, "-c", code, source_digest.__file__, str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == GOLDEN


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x = 1  # a comment", "x = (1)\n\n"),
        ("def f():\n    'Says.'\n    return 1", "def f():\n    return 1"),
        ("x = 'a' 'b'", 'x = "ab"'),
        ("x = u'a'", "x = 'a'"),
        ("x = f'a' f'b{c}'", "x = f'ab{c}'"),
        ("x = f'{c:}'", "x = f'{c}'"),
    ],
)
def test_how_something_is_written_does_not_change_the_digest(first: str, second: str) -> None:
    assert digest_source(first) == digest_source(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 'a'", "x = b'a'"),
        ("x = None", "x = ..."),
        ("x = [1], 2", "x = [1, 2]"),
        ("x = 0.1", "x = 0.10000000000000002"),
        ("x = f'{c!r}'", "x = f'{c!s}'"),
        ("f(a, b)", "f(a, b=b)"),
        ("def f(a, /): pass", "def f(a): pass"),
        ("def f(): pass", "async def f(): pass"),
        ("return_ = -1", "return_ = +1"),
        ("def f():\n    return 'Says.'", "def f():\n    'Says.'"),
        ("x: int", "x = int"),
        ("del a", "a"),
    ],
)
def test_what_the_code_does_changes_the_digest(first: str, second: str) -> None:
    assert digest_source(first) != digest_source(second)


def test_a_deeply_nested_source_has_a_digest() -> None:
    assert digest_source("x = " + "-" * 60 + "1").startswith("sha256:")
    assert digest_source("x = " + " + ".join(["1"] * 300)).startswith("sha256:")


def test_the_module_of_the_digest_needs_the_standard_library_alone() -> None:
    assert not source_digest.__file__.endswith(".pyc")
    text = Path(source_digest.__file__).read_text()
    imported = [line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert {name.partition(".")[0] for name in imported} - {"__future__"} <= set(sys.stdlib_module_names)
