"""How the suites run: failed tests once more, and unstable ones named."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import suites

FAILS_ONCE = """
from pathlib import Path

def test_first():
    mark = Path(__file__).with_name("mark")
    seen = mark.exists()
    mark.touch()
    assert seen
"""
ALWAYS_FAILS = (
    "import pytest\n@pytest.mark.parametrize('x', range({count}))\ndef test_x(x):\n    assert False\n"
)


def _run(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> suites.SuiteResult:
    (folder / "test_one.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(suites, "ROOT", folder)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of the time of a start
    return suites.run_suite("one", ["."])


def test_a_test_that_fails_once_passes_and_is_named_as_unstable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = _run(tmp_path, monkeypatch, FAILS_ONCE)
    assert (result.status, result.counts, result.unstable) == (0, {"passed": 1}, ["test_one.py::test_first"])


@pytest.mark.parametrize("count", [1, suites.MOST_REPEATED + 1])
def test_a_test_that_fails_again_fails_its_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    result = _run(tmp_path, monkeypatch, ALWAYS_FAILS.format(count=count))
    assert (result.status, result.counts, result.unstable) == (1, {"failed": count}, [])
