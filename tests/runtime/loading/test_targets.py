"""What ``serve`` and ``publish`` load, and how a file that cannot be loaded is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from retinue.core.errors import InvalidSettingError
from retinue.mesh.permissions import AccessRule
from retinue.runtime.access import agent_rule
from retinue.runtime.loading.targets import load_target
from retinue.settings import Settings
from tests.requirements import requirement

AGENT = "from retinue import Agent\n\nagent = Agent('word-agent')\n"


def refusal(text: str, folder: Path) -> str:
    with pytest.raises(InvalidSettingError) as caught:
        load_target(text, folder=folder)
    assert caught.value.remedy
    return caught.value.message


def write(folder: Path, content: bytes) -> None:
    (folder / "agent.py").write_text(AGENT)
    (folder / "agent.json").write_bytes(content)


def test_an_agent_json_is_utf_8(tmp_path: Path) -> None:
    write(tmp_path, '{"entry": "agent.py", "name": "zähler", "description": "日本 🎉"}'.encode())
    record = load_target("agent.json", folder=tmp_path).agent.record()
    assert (record.name, record.description) == ("zähler", "日本 🎉")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "agent.json: it is not UTF-8"),
        (b"{", "agent.json: not valid JSON: Unclosed object starting near 1"),
        (b"[" * 1000, "agent.json: not valid JSON: Maximum nesting level exceeded near 33"),
        (b"[]", "agent.json: it is a list"),
        (b'{"entry": "agent.py", "version": 1}', "agent.json: version: it is a number"),
        (b'{"entry": "agent.py", "name": {}}', "agent.json: name: it is an object"),
        (b'{"entry": "agent.py", "name": ""}', "name: '' is not an agent name"),
        (b'{"entry": "agent.py", "name": "../x"}', "name: '../x' is not an agent name"),
    ],
)
def test_a_wrong_agent_json_is_refused_in_plain_words(content: bytes, said: str, tmp_path: Path) -> None:
    write(tmp_path, content)
    assert refusal("agent.json", tmp_path) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [("raise SystemExit(5)", "SystemExit: 5"), ("1 / 0", "ZeroDivisionError: division by zero")],
)
def test_what_an_import_raises_is_said_and_is_not_our_end(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_agent.py").write_text(f"{line}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert refusal("broken_agent.py", tmp_path) == f"target: importing broken_agent.py raised {said}"
    monkeypatch.delitem(sys.modules, "broken_agent", raising=False)
    assert refusal("broken_agent:agent", tmp_path) == f"target: importing broken_agent raised {said}"


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal("no_such_module:agent", tmp_path) == "target: no module named no_such_module"


@requirement("S-17")
def test_an_agent_json_says_whom_the_agent_hears_and_whom_it_may_call(tmp_path: Path) -> None:
    write(
        tmp_path, b'{"entry": "agent.py", "access": {"receive": ["build-*"], "send": ["docs-agent/read_*"]}}'
    )
    assert load_target("agent.json", folder=tmp_path).access == AccessRule(
        ("build-*",), ("docs-agent/read_*",)
    )
    write(tmp_path, b'{"entry": "agent.py", "access": {"receive": []}}')
    assert load_target("agent.json", folder=tmp_path).access == AccessRule((), None)
    write(tmp_path, b'{"entry": "agent.py"}')
    assert load_target("agent.json", folder=tmp_path).access == AccessRule()


@pytest.mark.parametrize("access", [b"[]", b'{"recieve": []}', b'{"send": "x"}', b'{"send": [1]}'])
def test_lists_of_another_form_are_refused(tmp_path: Path, access: bytes) -> None:
    write(tmp_path, b'{"entry": "agent.py", "access": ' + access + b"}")
    refusal("agent.json", tmp_path)


def test_the_settings_win_over_the_lists_of_the_agent_list_by_list() -> None:
    settings = Settings(access={"word-agent": {"send": ["a"]}})
    own = AccessRule(("b",), ("c",))
    assert agent_rule(settings, "word-agent", own) == AccessRule(("b",), ("a",))
    assert agent_rule(settings, "other-agent", own) == own


def test_an_entry_without_an_agent_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="names no agent"):
        agent_rule(Settings(access={"word-agent": {"send": ["/read"]}}), "word-agent", AccessRule())


def test_a_skill_that_nobody_would_find_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a command that an earlier test ran in this process keeps the logger of its own configuration
    monkeypatch.setattr("retinue.runtime.loading.targets._log", structlog.get_logger())
    (tmp_path / "silent.py").write_text(
        "from retinue import Agent\n\nagent = Agent('silent-agent')\n\n\n"
        "@agent.skill\ndef greet() -> str:\n    return ''\n\n\n"
        "@agent.skill(private=True)\ndef hidden() -> str:\n    return ''\n\n\n"
        '@agent.skill\ndef told() -> str:\n    """Tells."""\n    return \'\'\n'
    )
    with capture_logs() as lines:
        load_target("silent.py", folder=tmp_path)
    (line,) = lines
    assert line["log_level"] == "warning"
    assert line["event"] == ("no description of greet: write a docstring, by which callers find the skill")
