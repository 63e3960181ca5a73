"""A scripted model in a process of its own, as the tests of killed loops use it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.processes.running import execute, program

SCRIPT = """
name: thinker
log: requests.jsonl
turns:
  - {text: Looking., calls: [{name: weather, arguments: {city: Rome}}]}
  - 31 degrees.
"""
USER = {"role": "user", "content": [{"type": "text", "text": "How warm is it in Rome?"}]}


def test_a_served_script_goes_on_with_its_conversation_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    source = 'from retinue.testing import ScriptedModel\n\nagent = ScriptedModel.from_file("script.yaml")\n'
    (tmp_path / "model.py").write_text(source)
    messages: list[Any] = [USER]
    replies: list[dict[str, Any]] = []
    for _ in range(2):
        with program("serve", "model.py", "--no-publish", cwd=tmp_path) as served:
            url = served.url_in("thinker")
            answer = execute(url, "complete", {"messages": messages})
            replies.append(answer["result"])
            served.end(signal.SIGKILL)
        (call,) = replies[0]["calls"]
        result = {"id": call["id"], "name": call["name"], "content": [{"type": "text", "text": "31"}]}
        messages = [USER, {"role": "assistant", "reply": replies[0]}, {"role": "tool", "results": [result]}]
    assert [reply["text"] for reply in replies] == ["Looking.", "31 degrees."]
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [(line["turn"], line["attempt"]) for line in lines] == [(1, 1), (2, 1)]
