"""Two teams on one hub with an agent and an import of one name, also for clients of other projects."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.request import Request, urlopen

import orjson
from a2a.helpers import get_artifact_text

from tests.interop.test_a2a_sdk import call as call_by_a2a
from tests.interop.test_a2a_sdk import message_for, open_client
from tests.mcp.clients import MODES, connect, texts
from tests.processes.commands import retinue, run_command
from tests.processes.running import program, wait_until
from tests.processes.upgrades import render_document, serving_versions

TEAM = """
name = "{team}"
version = "1.0.0"

[[agents]]
target = "agents/word/agent.py"

[[agents]]
target = "agents/asker/agent.py"

[imports.told]
openapi = "documents/told.json"

[[check.calls]]
agent = "word"
skill = "tell"
result = "{team}"
"""
WORD = """
from retinue import Agent

agent = Agent("word", version="1.0.0")


@agent.skill(idempotent=True, expose=True)
def tell(text: str = "") -> str:
    \"\"\"The team.\"\"\"
    return "{team}"
"""
ASKER = """
from retinue import Agent, Context

agent = Agent("{team}-asker", version="1.0.0")


@agent.skill()
async def ask_{team}(ctx: Context, text: str = "") -> list[str]:
    \"\"\"The teams of the word agent and of the import that plain names mean here.\"\"\"
    told = await ctx.call("show", agent="told")
    return [str(await ctx.call("tell", {"text": text}, agent="word")), told["version"]]
"""
POLICY = """
@id("quiet") @reason("news is quiet")
forbid(principal, action == Retinue::Action::"call", resource in Retinue::Agent::"word")
when { context.args has text && context.args.text == "no" };
"""


def pack(folder: Path, team: str, api: str) -> str:
    """Pack a team; the one called news has a policy."""
    files = {"team.toml": TEAM, "agents/word/agent.py": WORD, "agents/asker/agent.py": ASKER}
    files["documents/told.json"] = render_document(f"{api}/{team}")
    if team == "news":
        files["policies/quiet.cedar"] = POLICY
    for path, text in files.items():
        file = folder / team / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("{team}", team))
    retinue("lock", team, cwd=folder)
    return retinue("pack", team, cwd=folder)


def fetch(url: str, token: str = "") -> str:
    with urlopen(Request(url, headers={"authorization": token} if token else {})) as response:
        return str(response.read().decode())


async def check_clients(url: str, token: str) -> None:
    """The official MCP client and that of the A2A SDK reach each agent, by names that every model accepts."""
    for mode in MODES:
        async with connect(f"{url}/mcp", mode, authorization=token) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names), names
            told = {name: texts(await client.call_tool(name, {})) for name in names if "__tell" in name}
            assert told == {f"word_{team}__tell": [team] for team in ("news", "words")}
    for team in ("news", "words"):
        address = f"{url}/agents/word@{team}"
        async with connect(f"{address}/mcp", authorization=token) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["tell"]
            assert texts(await client.call_tool("tell", {})) == [team]
        async with open_client(address, "1.0", token, streaming=False) as client:
            (artifact,) = (await call_by_a2a(client, message_for("tell", {}))).artifacts
            assert get_artifact_text(artifact) == team


def check_callers(folder: Path, page: str) -> None:
    """Rows, lines and pages say of which team an agent is that calls, and nothing more of others."""
    rows = [orjson.loads(line) for line in retinue("logs", "--json", "-n", "1000", cwd=folder).splitlines()]
    calls = [row for row in rows if row["event"] == "call" and row.get("skill") in ("tell", "ask_news")]
    teams = {(row["skill"], row["caller"].partition("-")[2], row.get("team")) for row in calls}
    assert {("tell", "asker", "news"), ("tell", "asker", "words"), ("ask_news", "", None)} <= teams
    assert ("tell", "asker", None) not in teams
    lines = retinue("logs", "--text", "-n", "1000", cwd=folder)
    for team in ("news", "words"):
        assert f"by {team}-asker@{team}  " in lines
        assert f"{team}-asker@{team}" in page


def test_each_team_means_its_own_agent_and_callers_name_the_team(tmp_path: Path, retinue_home: Path) -> None:
    with serving_versions() as api:
        check_two_teams(tmp_path, retinue_home, api)


def check_two_teams(tmp_path: Path, retinue_home: Path, api: str) -> None:
    digests = [pack(tmp_path, team, api) for team in ("news", "words")]

    def call(*arguments: str) -> object:
        return orjson.loads(retinue("call", *arguments, "--json", cwd=tmp_path))

    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.wait_for("hub at").split("hub at ")[1].split()[0]
        for digest in digests:
            retinue("up", digest, "--yes", cwd=tmp_path)
        for team in ("news", "words"):
            assert call("tell", "--agent", f"word@{team}") == team
            assert call("show", "--agent", f"told@{team}") == {"version": team}
            assert call(f"ask_{team}") == [team, team]
            assert "word" in fetch(f"{url}/agents/word@{team}/.well-known/agent-card.json")
        owner = f"Bearer {(retinue_home / 'keys' / 'owner.token').read_text().strip()}"
        asyncio.run(check_clients(url, owner))
        listed, page = retinue("agents", cwd=tmp_path), fetch(f"{url}/ui/agents", owner)
        found = orjson.loads(retinue("find", "tell", "--json", cwd=tmp_path))["skills"]
        assert {row["agent"] for row in found if row["skill"] == "tell"} == {"word@news", "word@words"}
        for team in ("news", "words"):
            assert f"word@{team}" in listed
            assert f"/ui/agents/word%40{team}" in page
            assert f"word@{team}" in fetch(f"{url}/ui/agents/word@{team}", owner)
        plain = run_command("call", "tell", "--agent", "word", cwd=tmp_path)
        assert plain.returncode != 0
        assert "word@news, word@words" in plain.stderr
        # the policy of news binds neither the agent of this name in words nor calls of the agents of words
        no = '{"text": "no"}'
        assert call("tell", no, "--agent", "word@words") == "words"
        assert call("ask_words", no) == ["words", "words"]
        check_callers(tmp_path, fetch(f"{url}/ui/calls?skill=tell", owner))
        for arguments in (("tell", no, "--agent", "word@news"), ("ask_news", no)):
            denied = run_command("call", *arguments, cwd=tmp_path)
            assert denied.returncode != 0
            assert "news is quiet" in denied.stderr
        assert "told@news" in retinue("imports", cwd=tmp_path)
        retinue("down", "words", cwd=tmp_path)
        shown = ("call", "show", "--agent", "told", "--json")
        wait_until(lambda: "news" in run_command(*shown, cwd=tmp_path).stdout, "the import of one team")
