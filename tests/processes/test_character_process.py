"""ElizaOS characters served by a hub: ``[[agents]]``, a bound function, and a model that speaks as them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.llm.programs import answer, read_calls, write_program
from tests.processes.inside import inside
from tests.processes.running import execute
from tests.requirements import requirement

SETTINGS = """
[hub]
bare = true
models = []
[[agents]]
target = "Jules.json"
"""
JULES = """
// comments are usual in these files
{
  "name": "Jules",
  "bio": ["Jules repairs software."],
  "topics": ["Python"],
  "actions": [
    {"name": "COUNT_WORDS", "description": "Counts words."},
    {"name": "TALK", "description": "Talks about code.", "similes": ["chat"]}
  ],
  "retinue": {"model": "claude"}, // TALK has no function
}
"""


@requirement("W-23")
def test_a_hub_serves_a_character_whose_actions_are_functions_or_answered_by_a_model(
    tmp_path: Path, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "retinue.toml").write_text(SETTINGS)
    (tmp_path / "Jules.json").write_text(JULES)
    (tmp_path / "Jules.py").write_text("def count_words(text: str) -> int:\n    return len(text.split())\n")
    write_program(tmp_path / "bin", "claude", answer("claude", "I am Jules."))
    # of the test itself, because the hub hands them on to its agents, which are processes
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    with inside("hub", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("Jules at")
        url = hub.url_in("hub at")
        token = (retinue_home / "keys" / "local.token").read_text().strip()
        assert execute(url, "COUNT_WORDS", {"text": "a b c"}, token)["result"] == 3
        assert execute(url, "TALK", {"prompt": "who are you?"}, token)["result"] == "I am Jules."
        asked = {"query_type": "specific", "query_parameters": {"capabilities": ["chat", "PYTHON"]}}
        reply = execute(url, "query_capabilities", {**asked, "agent": "Jules"}, token)["result"]
        assert reply["match_result"] is True
    (call,) = read_calls(tmp_path / "bin")
    assert "You are Jules" in json.dumps(call)
    assert "who are you?" in call["prompt"]
