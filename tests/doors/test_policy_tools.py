"""The owner's tools against a mesh that runs: a client with a profile, replays of real calls, the mode."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from mcp.types import CallToolResult

from retinue.cli.program import program
from retinue.mesh.observing.metrics import Figures
from retinue.policies.policy_set import load_policies
from retinue.runtime.loading.policy_files import PolicyFiles
from retinue.runtime.parts.audit import RecordedEvents
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.storage.audit_store import SqliteAudit
from retinue.web.issued_tokens import TokenFile
from tests.doors.test_policies import ON_REFUNDS, Bank, open_bank, write_policies
from tests.mcp.clients import connect, texts
from tests.system import System, Wire

NONE = "// no policies yet"
LARGE = f'@id("large") forbid({ON_REFUNDS}) when {{ context.args has amount && context.args.amount > 500 }};'


async def run(*arguments: str) -> Any:
    """Run a command as a person would, while the hub of this process serves."""
    return await asyncio.to_thread(CliRunner().invoke, program, arguments)


def read_json(output: str) -> Any:
    """The reply of a command, after the log lines that the hub of this process wrote meanwhile."""
    return orjson.loads(output[output.index("{\n") :])


def flush(bank: Bank) -> None:
    """Write the audit rows that wait."""
    bank.hub.process.get(RecordedEvents).flush()
    bank.hub.process.get(SqliteAudit).flush()


async def test_a_client_connected_with_a_profile_sees_in_its_list_what_asks_a_person(
    system: System, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    bank = await open_bank(system, wire, NONE, durable=True)
    await wire.call(bank.hub.url, "refresh_agents", {})
    for _ in range(2):  # the second time nothing changes
        connected = await run("connect", "claude", "--policy", "ask-before-writes")
        assert connected.exit_code == 0, connected.output
    kept = await run("connect", "claude")  # a person who connects again takes nothing away
    assert "Claude Code keeps ask-before-writes" in kept.output
    assert (await run("connect", "claude", "--stdio")).exit_code == 2
    assert [token.name for token in TokenFile(system.state.keys).list_all()] == ["claude"]
    entry = orjson.loads((tmp_path / ".claude.json").read_bytes())["mcpServers"]["retinue"]
    assert "rtn_" in entry["headers"]["Authorization"]
    bank.hub.process.get(LoadedPolicies).reload()

    async with connect(entry["url"], authorization=entry["headers"]["Authorization"]) as client:
        tools = {tool.name: tool.description or "" for tool in (await client.list_tools()).tools}
        marked = {name for name, text in tools.items() if text.startswith("[asks a person first] ")}
        assert "bank__refund" in marked
        assert tools["bank__balance"] == "Tells the balance."
        refused = await client.call_tool("bank__refund", {"amount": 3})
        assert "approval_needed" in str(refused) or "needs the approval" in texts(refused)[0]
        assert isinstance(await client.call_tool("bank__balance", {}), CallToolResult)
        assert bank.refunds == []
        approval = read_json((await run("approvals", "--json")).stdout)["approvals"][0]["approval"]
        assert (await run("approvals", "approve", approval)).exit_code == 0
        await client.call_tool("bank__refund", {"amount": 3})
        assert bank.refunds == [3]
    dropped = await run("connect", "claude", "--policy", "none")
    assert "removed policy ask-before-writes of token:claude" in dropped.output
    assert TokenFile(system.state.keys).list_all() == ()
    entry = orjson.loads((tmp_path / ".claude.json").read_bytes())["mcpServers"]["retinue"]
    assert entry["headers"]["Authorization"] == f"Bearer {system.state.local_token()}"
    policies = system.state.root / "policies"
    assert [file.name for file in policies.glob("*claude.cedar")] == []
    # who removes the client takes its token away, and not the policy that binds it
    await run("connect", "claude", "--policy", "ask-before-writes")
    removed = await run("connect", "claude", "--remove")
    assert "revoked token " in removed.output
    assert TokenFile(system.state.keys).list_all() == ()
    assert [file.stem for file in policies.glob("*claude.cedar")] == ["ask-before-writes-token-claude"]
    assert "Claude Code keeps ask-before-writes" in (await run("connect", "claude")).output


async def test_what_was_called_is_replayed_against_other_policies_and_suggests_its_own(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    system.settings = system.settings.model_copy(
        update={"policy": system.settings.policy.model_copy(update={"record": "inputs"})}
    )
    bank = await open_bank(system, wire, LARGE.replace("forbid", '@mode("watch") forbid'))
    await wire.call(bank.hub.url, "refresh_agents", {})
    token = f"Bearer {TokenFile(system.state.keys).issue(('mesh',), name='ann')[1]}"
    for amount in (900, 100):
        await wire.call(bank.hub.url, "refund", {"amount": amount}, authorization=token)
    # the agent asks the bank for its caller
    await wire.call(bank.hub.url, "help_customer", {"amount": 700}, authorization=token)
    flush(bank)

    (tmp_path / "new.cedar").write_text(LARGE, "utf-8")
    replayed = await run("policy", "replay", str(tmp_path / "new.cedar"), "--json")
    assert replayed.exit_code == 1, replayed.output
    reply = read_json(replayed.stdout)
    assert reply["counts"]["cannot_tell"] == 0
    rows = {(row["caller"], row["skill"], row["calls"]) for row in reply["rows"] if row["change"] == "denied"}
    assert rows == {("token:ann", "bank/refund", 1), ("clerk", "bank/refund", 1)}

    flush(bank)
    suggested = (await run("policy", "suggest", "--from-audit")).stdout
    suggested = suggested[suggested.index("// The skills") :]
    file = tmp_path / "suggested.cedar"
    file.write_text(suggested, "utf-8")
    assert "// 2 calls, the last one" in suggested
    policies = load_policies({"suggested.cedar": suggested}, default="deny").policies
    assert all(policy.effect == "permit" for policy in policies)
    assert "_policies" not in suggested  # the owner may always call them
    checked = await run("policy", "check", "--default", "deny", str(file))
    assert checked.exit_code == 0, checked.output
    again = await run("policy", "replay", "--strict", "--default", "deny", "--json", str(file))
    assert again.exit_code == 0, again.output
    counts = read_json(again.stdout)["counts"]
    assert (counts["denied"], counts["cannot_tell"]) == (0, 0)


async def test_the_owner_switches_all_policies_while_the_hub_runs_and_counts_what_they_decide(
    system: System, wire: Wire
) -> None:
    # about a skill of the hub, because agents follow a second later
    text = '@id("closed") forbid(principal == Retinue::Caller::"token:ann", action, resource)'
    bank = await open_bank(system, wire, text + ' when { resource.name == "list_agents" };')
    token = f"Bearer {TokenFile(system.state.keys).issue(('mesh',), name='ann')[1]}"

    async def list_agents() -> str:
        reply = await wire.call(bank.hub.url, "list_agents", {}, authorization=token)
        return "denied" if b"policy_denied" in reply.body else "done"

    assert await list_agents() == "denied"
    reply = await wire.call(bank.hub.url, "set_policy_mode", {"mode": "off"}, authorization=token)
    assert b"insufficient_scope" in reply.body
    for mode, then in (("watch", "done"), ("off", "done"), ("settings", "denied")):
        assert (await run("policy", "mode", mode)).exit_code == 0
        assert await list_agents() == then, mode
    figures = Figures()
    await bank.hub.process.get(LoadedPolicies).read_figures(figures)
    counts = figures.values["retinue_policy_decisions_total"]
    assert (counts["deny", "closed"], counts["watch_deny", "closed"]) == (2, 1)


async def test_an_explanation_for_another_caller_has_the_scopes_of_its_token(
    system: System, wire: Wire
) -> None:
    text = f'@id("members") forbid({ON_REFUNDS}) unless {{ principal.scopes.contains("mesh") }};'
    bank = await open_bank(system, wire, text)
    await wire.call(bank.hub.url, "refresh_agents", {})
    TokenFile(system.state.keys).issue(("exposed",), name="ann")
    TokenFile(system.state.keys).issue(("exposed", "mesh"), name="bob")
    for caller, verdict, is_assumed in (
        ("token:ann", "deny", False),
        ("token:bob", "allow", False),
        ("clerk", "allow", True),
        ("jwt:eve", "allow", True),
    ):
        arguments = ("bank/refund", '{"amount": 3}', "--as", caller, "--json")
        reply = read_json((await run("policy", "explain", *arguments)).stdout)
        assert (reply["verdict"], "scopes_assumed" in reply) == (verdict, is_assumed), caller


async def test_files_are_read_in_a_thread_and_a_reading_that_was_overtaken_is_dropped(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = await open_bank(system, wire, NONE)
    loaded, load, threads = bank.hub.process.get(LoadedPolicies), PolicyFiles.load, list[str]()
    may_go_on = threading.Event()

    def wait_in_thread(self: PolicyFiles, *arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        policies = load(self, *arguments, **options)
        if threading.current_thread() is not threading.main_thread():
            may_go_on.wait(60)
        return policies

    monkeypatch.setattr(PolicyFiles, "load", wait_in_thread)
    reading = asyncio.create_task(loaded.reload_in_thread())
    while not threads:
        await asyncio.sleep(0.001)
    write_policies(system, LARGE)
    loaded.reload()
    may_go_on.set()
    await reading
    assert threads[0] != threading.main_thread().name
    assert loaded.gate is not None
    assert [policy.id for policy in loaded.gate.engine.policies.policies] == ["large"]
