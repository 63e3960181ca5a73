"""Two teams on one hub with an agent of one name, as real processes."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import orjson

from tests.processes.commands import retinue, run_command
from tests.processes.running import program

TEAM = """
name = "{team}"
version = "1.0.0"

[[agents]]
target = "agents/word/agent.py"

[[agents]]
target = "agents/asker/agent.py"

[[check.calls]]
agent = "word"
skill = "tell"
result = "{team}"
"""
WORD = """
from retinue import Agent

agent = Agent("word", version="1.0.0")


@agent.skill(idempotent=True)
def tell() -> str:
    \"\"\"The team.\"\"\"
    return "{team}"
"""
ASKER = """
from retinue import Agent, Context

agent = Agent("{team}-asker", version="1.0.0")


@agent.skill()
async def ask_{team}(ctx: Context) -> str:
    \"\"\"The team of the word agent that a plain name means here.\"\"\"
    return str(await ctx.call("tell", agent="word"))
"""


def pack(folder: Path, team: str) -> str:
    for path, text in (("team.toml", TEAM), ("agents/word/agent.py", WORD), ("agents/asker/agent.py", ASKER)):
        file = folder / team / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("{team}", team))
    retinue("lock", team, cwd=folder)
    return retinue("pack", team, cwd=folder)


def fetch(url: str) -> str:
    with urlopen(url) as response:
        return str(response.read().decode())


def test_each_team_means_its_own_agent_and_callers_name_the_team(tmp_path: Path) -> None:
    digests = [pack(tmp_path, team) for team in ("news", "words")]

    def call(*arguments: str) -> object:
        return orjson.loads(retinue("call", *arguments, "--json", cwd=tmp_path))

    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.wait_for("hub at").split("hub at ")[1].split()[0]
        for digest in digests:
            retinue("up", digest, "--yes", cwd=tmp_path)
        for team in ("news", "words"):
            assert call("tell", "--agent", f"word@{team}") == team
            assert call(f"ask_{team}") == team
            assert "word" in fetch(f"{url}/agents/word@{team}/.well-known/agent-card.json")
        plain = run_command("call", "tell", "--agent", "word", cwd=tmp_path)
        assert plain.returncode != 0
        assert "word@news, word@words" in plain.stderr
        retinue("down", "words", cwd=tmp_path)
