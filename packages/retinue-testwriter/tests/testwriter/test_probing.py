from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from retinue.core.errors import ExecutionFailedError
from retinue_testwriter.drafting import draft_tests
from retinue_testwriter.inspection import inspect_file, inspect_names
from retinue_testwriter.probing import Findings, choose_python, probe_subject
from retinue_testwriter.subject import Subject

ODDITIES = '''
import os, random, sys, time


class Box:
    """Holds a size, which is never below 0."""

    def __init__(self, size: int) -> None:
        if size < 0:
            raise ValueError("below 0")
        self.size = size

    def double(self) -> int:
        return self.size * 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self.size == other.size


def half(n: int) -> float:
    if n == 7:
        raise KeyError(n)
    return n / 2

def untyped(a, b):
    return a + b

def scramble(items: list[int]) -> float:
    return random.random()

def push(items: list[int], n: int) -> None:
    items.append(n)

def count(n: int):
    yield from range(abs(n))

def forever(n: int) -> int:
    while True:
        pass

def die(n: int) -> int:
    os._exit(3)

def wipe(path: str) -> None:
    os.remove(path or "/nowhere")

def ask(n: int) -> str:
    return sys.stdin.readline()

async def later(n: int) -> int:
    return n + 1

def encode_text(text: str) -> bytes:
    return text.encode()

def decode_text(data: bytes) -> str:
    return data.decode()

def strange(code: type[int]) -> int:
    return 1
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("oddities")
    (folder / "oddities.py").write_text(ODDITIES)
    return folder


_kept: list[tuple[Subject, Findings]] = []


@pytest.fixture
async def probed(folder: Path) -> tuple[Subject, Findings]:
    if not _kept:
        subject = await inspect_file(folder / "oddities.py")
        _kept.append((subject, await probe_subject(subject)))
    return _kept[0]


@pytest.mark.timeout(600)
async def test_the_module_is_never_imported_here(probed: tuple[Subject, Findings]) -> None:
    assert "oddities" not in sys.modules


async def test_learns_instances_from_the_arguments_that_a_constructor_takes(
    probed: tuple[Subject, Findings],
) -> None:
    _subject, findings = probed
    assert findings.instances["any_box"].startswith("st.builds(oddities.Box, st.integers(min_value=0")
    assert findings.by_target["Box.double"]["counts"]["surprise"] == 0


async def test_tells_documented_from_undocumented_exceptions(probed: tuple[Subject, Findings]) -> None:
    _subject, findings = probed
    assert [e["exception"] for e in findings.by_target["Box"]["documented"]] == ["ValueError"]
    surprises = findings.by_target["half"]["surprises"]
    assert [(e["exception"], e["call"]) for e in surprises] in ([], [("KeyError", "oddities.half(7)")])


async def test_guesses_what_an_untyped_function_takes(probed: tuple[Subject, Findings]) -> None:
    _subject, findings = probed
    chosen = findings.by_target["untyped"]["chosen"]
    assert chosen["a"] == chosen["b"]
    assert findings.by_target["untyped"]["counts"]["ok"] > 50


async def test_knows_a_function_that_does_not_repeat_from_one_that_does(
    probed: tuple[Subject, Findings],
) -> None:
    _subject, findings = probed
    assert not findings.by_target["scramble"]["stable"]
    assert findings.by_target["scramble"]["pins"] == []
    assert findings.by_target["half"]["stable"]


async def test_sees_which_arguments_a_function_changes(probed: tuple[Subject, Findings]) -> None:
    _subject, findings = probed
    found = findings.by_target["push"]
    assert found["changes"] == ["items"]
    assert found["pins"][0]["lines"][-1].startswith("assert items == ")


async def test_reads_iterators_and_awaits_coroutines(probed: tuple[Subject, Findings]) -> None:
    _subject, findings = probed
    assert [e["name"] for e in findings.by_target["count"]["types"]] == ["list"]
    assert [e["name"] for e in findings.by_target["later"]["types"]] == ["int"]


async def test_finds_a_round_trip(probed: tuple[Subject, Findings]) -> None:
    _subject, findings = probed
    names = [relation["name"] for relation in findings.by_target["encode_text"]["relations"]]
    assert names == ["decode_text_undoes_encode_text"]


async def test_names_what_cannot_be_tested_and_why(probed: tuple[Subject, Findings]) -> None:
    subject, findings = probed
    reasons = {entry.name: entry.why for entry in draft_tests(subject, findings, {}, 1).untestable}
    assert "did not come back" in reasons["die"]
    assert "takes too long" in reasons["forever"]
    assert "os.remove" in reasons["wipe"]
    assert "standard input" in reasons["ask"]
    assert "type[int]" in reasons["strange"]
    assert set(reasons) == {"die", "forever", "wipe", "ask", "strange"}


async def test_a_default_that_a_stub_does_not_tell_is_left_alone() -> None:
    subject = await inspect_names(["math"])
    log = next(target for target in subject.targets if target.name == "log")
    assert [(p.name, p.default) for p in log.parameters] == [("x", None), ("base", "...")]
    subject = replace(subject, targets=(log,))
    draft = draft_tests(subject, await probe_subject(subject), {}, 1)
    assert "math.log(x)" in draft.code
    assert "llipsis" not in draft.code


async def test_a_module_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sour.py").write_text("def f(n: int) -> int:\n    return n\n\nraise RuntimeError('sour')\n")
    subject = await inspect_file(tmp_path / "sour.py")
    with pytest.raises(ExecutionFailedError, match="sour cannot be imported: RuntimeError: sour"):
        await probe_subject(subject)


def test_an_interpreter_without_the_tools_lends_its_search_path_to_ours() -> None:
    subject = Subject("m", "", "", "/other/python", (3, 12, 0), search_path=("/a",), tools=("pytest",))
    assert choose_python(subject) == (sys.executable, ["/a"])
    full = Subject("m", "", "", "/other/python", (3, 12, 0), tools=("pytest", "hypothesis"))
    assert choose_python(full) == ("/other/python", [])
