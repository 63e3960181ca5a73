"""Runs that wait for approval, over a real hub that is killed while they wait; people answer at the next."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.approvals.records import ApprovalRequest
from retinue.core.errors import InvalidRequestError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.approvals import ApprovalTable
from retinue.workflows.durable.tables.signals import SignalTable
from tests.crash.test_code_workflows import read_log
from tests.processes.running import execute, program, wait_until

FILES = '''
from pathlib import Path

from retinue import Agent

agent = Agent("files", version="1.0.0")
HERE = Path(__file__).parent


@agent.skill
async def write_file(path: str) -> str:
    """Writes a file."""
    with (HERE / "log").open("a") as log:
        log.write(f"write {path}\\n")
    return "written"


@agent.skill
async def remove_file(path: str) -> str:
    """Removes a file."""
    with (HERE / "log").open("a") as log:
        log.write(f"remove {path}\\n")
    return "removed"
'''
POLICY = """
@id("removals") @reason("a person removes") @effect("approve")
forbid(principal, action == Retinue::Action::"call", resource == Retinue::Skill::"files/remove_file");
"""
MODEL = '''
from retinue.testing import ScriptedModel

agent = ScriptedModel.from_file("script.yaml")


@agent.skill
async def read_results() -> list[str]:
    """The results of the last conversation."""
    return [text for text, _ in agent.list_results()]
'''
SCRIPT = """
name: thinker
turns:
  - {calls: [{name: files__write_file, arguments: {path: a}}]}
  - The end.
"""
WORKFLOW: dict[str, Any] = {
    "name": "writing",
    "steps": [
        {"id": "write", "think": {"prompt": "Write", "tools": ["files/*"], "approve": ["files/write_*"]}}
    ],
}


REMOVAL: dict[str, Any] = {
    "name": "removal",
    "steps": [{"id": "remove", "skill": "remove_file", "with": {"path": "a"}}],
}


class Hub:
    """A hub in a process of its own, asked with the tokens of a state."""

    def __init__(self, url: str, keys: Path) -> None:
        self._url = url
        self._keys = keys

    def ask(self, skill: str, arguments: Any, token: str | None = None) -> Any:
        """The reply to the holder of a token, without one to that of ``local.token``."""
        return execute(self._url, skill, arguments, token or (self._keys / "local.token").read_text())

    def get(self, skill: str, /, **arguments: Any) -> Any:
        reply = self.ask(skill, arguments)
        assert "result" in reply, reply
        return reply["result"]

    def list_open(self) -> dict[str, str]:
        """The ids of the open approvals, by their run."""
        rows = self.get("list_approvals", state="open")["approvals"]
        return {row["run"]: row["approval"] for row in rows}

    def wait_for(self, run: str) -> Any:
        """The output of a run, when it has ended."""
        wait_until(lambda: self.get("show_run", run=run)["status"] != "running", f"{run} ends")
        return self.get("show_run", run=run)["output"]


def run_command(*arguments: str, cwd: Path) -> str:
    with program(*arguments, cwd=cwd) as command:
        assert command.wait() == 0, command.output
        return command.output


@pytest.mark.timeout(600)
def test_calls_that_wait_for_approval_outlive_the_hub_and_are_made_once(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    (tmp_path / "files.py").write_text(FILES)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    (tmp_path / "retinue.toml").write_text(f'database = "{database}"\n')
    keys = retinue_home / "keys"
    runs = ("approved", "denied", "by-token")
    (retinue_home / "policies").mkdir(parents=True)
    (retinue_home / "policies" / "own.cedar").write_text(POLICY)
    with (
        program("serve", "files.py", cwd=tmp_path) as files,
        program("serve", "model.py", cwd=tmp_path) as model,
    ):
        files.wait_for("published")
        model.wait_for("published")
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as served:
            hub = Hub(served.url_in("hub at"), keys)
            for run in runs:
                hub.get("start_run", workflow=WORKFLOW, input={}, run=run)
            for run in ("step-yes", "step-no"):
                hub.get("start_run", workflow=REMOVAL, input={}, run=run)
            wait_until(lambda: len(hub.list_open()) == 5, "each run asks")
            before = hub.list_open()
            served.end(signal.SIGKILL)
        # answered while no hub is there
        assert "approved: files/remove_file" in run_command(
            "approvals", "approve", before.pop("step-yes"), cwd=tmp_path
        )
        denial = ("approvals", "deny", before.pop("step-no"), "--reason", "keep it")
        assert "denied: files/remove_file" in run_command(*denial, cwd=tmp_path)
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as served:
            hub = Hub(served.url_in("hub at"), keys)
            assert hub.list_open() == before
            assert hub.wait_for("step-yes") == "removed"
            wait_until(lambda: hub.get("show_run", run="step-no")["status"] == "failed", "the no arrives")
            assert "keep it" in hub.get("show_run", run="step-no")["steps"][0]["error"]["message"]
            assert read_log(tmp_path) == {"remove a": 1}
            answer = {"approval": before["approved"], "verdict": "yes"}
            assert hub.ask("answer_approval", answer)["error"]["data"]["type"] == "insufficient_scope"
            forged = {
                "run": "approved",
                "topic": f"approval/{before['approved']}",
                "value": {"verdict": "yes"},
            }
            assert hub.ask("signal_run", forged)["error"]["data"]["type"] == "invalid_request"

            assert "approved: files/write_file" in run_command(
                "approvals", "approve", before["approved"], cwd=tmp_path
            )
            assert hub.wait_for("approved") == "The end."
            assert read_log(tmp_path) == {"remove a": 1, "write a": 1}, (
                "an equal call of another run still waits"
            )
            assert set(hub.list_open()) == {"denied", "by-token"}
            deny = ("approvals", "deny", before["denied"], "--reason", "not on a Sunday")
            assert "denied: files/write_file" in run_command(*deny, cwd=tmp_path)
            assert hub.wait_for("denied") == "The end."
            assert "not on a Sunday" in hub.get("read_results")[0]
            assert read_log(tmp_path) == {"remove a": 1, "write a": 1}

            token = run_command("token", "new", "--scope", "mesh", "--scope", "approves", cwd=tmp_path)
            answer = {"approval": before["by-token"], "verdict": "yes"}
            reply = hub.ask("answer_approval", answer, token.splitlines()[0])
            assert reply["result"]["state"] == "approved", reply
            assert hub.wait_for("by-token") == "The end."
            assert read_log(tmp_path) == {"remove a": 1, "write a": 2}
            assert hub.list_open() == {}

            calls = hub.get("list_calls", skill="answer_approval")["calls"]
            rows = [(row["status"], row.get("approval"), row.get("verdict")) for row in reversed(calls)]
            assert rows == [
                ("refused", before["approved"], "yes"),
                ("done", before["approved"], "yes"),
                ("done", before["denied"], "no"),
                ("done", before["by-token"], "yes"),
            ]


async def test_of_two_hubs_on_one_database_one_answers_one_uses_and_one_tells(database: str) -> None:
    databases = [RunDatabase(database) for _ in range(2)]
    first, second = (ApprovalTable(each, SignalTable(each)) for each in databases)
    request = ApprovalRequest("token:ann", "files", "1.0.0", "remove_file", {"path": "a"}, terms="policies x")
    try:
        for number in range(8):
            asked = await asyncio.gather(*(each.ask(request, expires_s=60) for each in (first, second)))
            (approval,) = {each.id for each in asked}
            told = await asyncio.gather(first.claim_notices(), second.claim_notices())
            assert sorted(map(len, told)) == [0, 1], number
            answers = await asyncio.gather(
                first.answer(approval, "yes", "owner"),
                second.answer(approval, "yes", "token:boss"),
                return_exceptions=True,
            )
            assert [isinstance(each, InvalidRequestError) for each in answers].count(True) == 1, answers
            uses = [each.use(approval, request.digest(), "key", once=True) for each in (first, second)]
            assert sorted(await asyncio.gather(*uses)) == [False, True], number
            await first.claim_notices()  # of the answer
        of_runs = [
            (await first.ask(replace(request, run=run), expires_s=60, approval_id=run.replace("/", "-"))).id
            for run in ("night", "night/child", "nights")
        ]
        await second.forget(["night"])
        assert [(await first.find(each)) is None for each in (*of_runs, approval)] == [
            True,
            True,
            False,
            False,
        ]
    finally:
        for each in databases:
            each.close()
