"""A trace of a team: recorded while it runs, packed, and played against digests that answer differently."""

from __future__ import annotations

from pathlib import Path

import orjson

from tests.processes.commands import retinue, run_command
from tests.processes.running import program

MODEL = """
from retinue.testing import ModelTurn, ScriptedModel

agent = ScriptedModel(
    ModelTurn("Looking.", calls=[("greet", {"name": "Ada"})]), "Ada is greeted.", name="thinker"
)
"""
HOST = """---
name: host
description: Greets guests who are named in words.
tools: greet
model: thinker
---
You greet guests.
"""
WORKFLOW = """
name: welcome
input: {type: object, properties: {guest: {type: string}}, required: [guest]}
steps:
  - {id: greeting, skill: greet, with: {name: "${{ input.guest }}"}}
  - {id: thought, skill: host, with: {prompt: Greet Ada.}}
output: {greeting: "${{ steps.greeting.output.text }}", thought: "${{ steps.thought.output }}"}
"""


def test_a_recorded_trace_shows_what_another_digest_answers_differently(tmp_path: Path) -> None:
    retinue("new", "--team", "editorial", cwd=tmp_path)
    folder = tmp_path / "editorial"
    agent, definition, host = folder / "agents/greeter/agent.py", folder / "team.toml", folder / "host.md"
    host.write_text(HOST)
    definition.write_text(definition.read_text() + '\n[[agents]]\ntarget = "host.md"\n')
    (folder / "workflows" / "welcome.yaml").write_text(WORKFLOW)
    (tmp_path / "model.py").write_text(MODEL)
    traces = folder / "traces"
    traces.mkdir()

    def pack(version: str) -> str:
        text = definition.read_text()
        before = text[text.index('version = "') :].partition("\n")[0]
        definition.write_text(text.replace(before, f'version = "{version}"'))
        retinue("lock", "editorial", cwd=tmp_path)
        return retinue("pack", "editorial", cwd=tmp_path).strip()

    first = pack("0.1.0")
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        program("serve", "model.py", cwd=tmp_path) as model,
    ):
        hub.wait_for("hub at")
        model.wait_for("thinker")
        retinue("up", first, "--yes", cwd=tmp_path)
        refused = run_command("record-team", "editorial", "-o", "no.json", cwd=tmp_path)
        assert (refused.returncode, "no calls of others" in refused.stderr) == (2, True)
        trace = traces / "calls.json"
        options = ("-o", str(trace), "--calls", "5", "--yes")
        with program("record-team", "editorial", *options, cwd=tmp_path) as recording:
            recording.wait_for("recording for")
            for name in ("Ada", "Bo", "ada@example.org"):
                retinue("call", "greet", f'{{"name": "{name}"}}', cwd=tmp_path)
            retinue("call", "host", '{"prompt": "Greet Ada."}', cwd=tmp_path)
            retinue("run", "welcome", '{"guest": "Bo"}', cwd=tmp_path)
            assert recording.wait() == 0, recording.output
        assert "ada@example.org" not in trace.read_text()
        assert trace.stat().st_mode & 0o777 == 0o600
        state = tmp_path / "retinue-home" / "teams"
        assert [place.name for place in state.glob("recording*")] == ["recording.json.lock"]

    agent.write_text(agent.read_text().replace('"Hello, {name}!"', '"Hello, {name}!".replace("Bo", "Bob")'))
    second = pack("0.2.0")  # with the trace as a layer
    done = run_command("replay-team", second, "--yes", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    reply = orjson.loads(done.stdout)
    assert reply["counts"] == {"equal": 2, "different": 2, "failed": 0, "cannot_tell": 1}
    assert [(row["call"], row["verdict"], row["text"]) for row in reply["calls"]] == [
        ("editorial-greeter/greet", "equal", ""),
        ("editorial-greeter/greet", "different", "1 place"),
        ("editorial-greeter/greet", "cannot tell", "its arguments are masked in the trace"),
        ("host/host", "equal", ""),
        ("workflow welcome", "different", "1 place"),
    ]
    assert reply["calls"][1]["details"] == ["result.text: Hello, [-Bo-]{+Bob+}!"]
    assert reply["calls"][4]["details"] == ["result.greeting: Hello, [-Bo-]{+Bob+}!"]
