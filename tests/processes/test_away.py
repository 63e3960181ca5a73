"""An agent that was stopped, or starts again, is away for its callers, not unknown."""

from __future__ import annotations

import re
from pathlib import Path

from tests.processes.commands import run_command
from tests.processes.inside import inside
from tests.processes.running import execute, write_agent

FLOW = "name: w\nsteps: [{id: a, skill: echo, with: {}}]\n"


def test_a_stopped_agent_is_away_since_seconds_for_calls_and_runs_and_forgotten_it_is_unknown(
    tmp_path: Path, retinue_home: Path
) -> None:
    file = write_agent(tmp_path, "echo-agent", "1.0.0", "echo", "here")
    (tmp_path / "flow.yaml").write_text(FLOW)
    with inside("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        token = (retinue_home / "keys" / "local.token").read_text()
        with inside("serve", file.name, cwd=tmp_path) as served:
            served.wait_for("published")
            assert execute(url, "echo", {}, token)["result"] == "here"
            assert served.end() == 0
        for asked in (url, f"{url}/agents/echo-agent"):
            error = execute(asked, "echo", {}, token)["error"]
            assert error["data"]["type"] == "agent_unreachable", error
            assert re.search(r"agent echo-agent is away since [\d.]+ s", error["message"])
        ran = run_command("run", "flow.yaml", "--id", "r", cwd=tmp_path)
        assert ran.returncode != 0
        assert "step a failed: agent echo-agent is away since" in ran.stderr
        assert "start echo-agent again" in ran.stderr
        assert "retinue rerun r --from a" in ran.stderr
        assert execute(url, "refresh_agents", {"forgotten": "echo-agent"}, token)["result"]["agents"] == 0
        assert execute(url, "echo", {}, token)["error"]["data"]["type"] == "skill_not_offered"
