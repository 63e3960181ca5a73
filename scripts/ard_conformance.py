"""Runs the conformance test of Agentic Resource Discovery against a hub of Retinue with one agent.

python -m scripts.ard_conformance ARD_DIR

ARD_DIR is a copy of https://github.com/ards-project/ard-spec. Its tool checks the catalog against the JSON
Schema and the rules of the specification, then the answers of the search.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOL = Path("conformance/bin/conformance-test")

AGENT = '''
from retinue import Agent

agent = Agent("weather", version="1.0.0", description="Weather of cities")


@agent.skill(expose=True, tags=["weather"])
async def forecast(city: str) -> str:
    """Weather forecast tools: the weather of a city tomorrow."""
    return city


@agent.skill(expose=True)
async def wind(city: str) -> str:
    """Tells the wind speed in a city."""
    return city
'''


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """A hub with the agent, in a state of its own; gives its URL."""
    (folder / "weather.py").write_text(AGENT)
    (folder / "retinue.toml").write_text('[discovery]\npublisher = "example.com"\n')
    environ = {**os.environ, "RETINUE_HOME": str(folder / "state"), "RETINUE_HUB": ""}
    environ["RETINUE_AGENTS"] = '[{"target": "weather.py"}]'
    command = [sys.executable, "-m", "retinue", "hub", "--bare", "--port", "0"]
    running = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert running.stdout is not None
        url = ""
        for line in running.stdout:
            text = line.decode()
            if found := re.match(r"hub at (\S+)", text):
                url = found[1]
            # printed once the agents that it starts have answered
            if re.match(r"1 agents?, 2 skills", text):
                yield url
                return
        raise ValueError("the hub did not start")
    finally:
        running.terminate()
        running.wait(20)


def main(arguments: list[str]) -> int:
    """0 if both parts pass; 2 where they could not run."""
    if len(arguments) != 1 or not (Path(arguments[0]) / TOOL).is_file():
        print(__doc__, file=sys.stderr)
        return 2
    tool = Path(arguments[0]).resolve() / TOOL
    with tempfile.TemporaryDirectory() as folder, hub(Path(folder)) as url:
        parts = (("manifest", f"{url}/.well-known/ai-catalog.json"), ("registry", url))
        statuses = [
            subprocess.run([sys.executable, str(tool), *part], check=False).returncode for part in parts
        ]
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
