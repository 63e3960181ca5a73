"""A third party's distribution in real processes: its agent, its workflow and its command are there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson

from tests.plugins import hide_test_writer, install_words
from tests.processes.running import execute, program


def test_what_a_distribution_declares_is_served_listed_and_run(tmp_path: Path, port: int) -> None:
    site = tmp_path / "site"
    install_words(site)
    hide_test_writer(site)
    environment = {"PYTHONPATH": str(site)}

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "retinue", *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    with program("hub", "--port", str(port), cwd=tmp_path, environment=environment) as hub:
        hub.wait_for("1 agents, 1 skills")
        assert execute(hub.url_in("hub at"), "count_words", {"text": "one two"})["result"] == 2
        assert "word-agent" in run("agents")
        assert "word-count" in run("workflows")
        assert orjson.loads(run("run", "word-count", '{"text": "one two three"}', "--json")) == 3
    assert run("count", "one two") == "2 words\n"
    assert "Words of word-tools." in run("--help")
    bare = program("hub", "--bare", "--port", str(port), cwd=tmp_path, environment=environment)
    with bare as hub:
        hub.wait_for("0 agents")
