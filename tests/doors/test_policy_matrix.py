"""Every endpoint × every effect of a policy: a call of a skill that policies concern, on each way to it.

A way is one entry of the tables below: how a caller asks for a refund. Each is asked of a mesh whose policies
forbid the skill, let a person decide, limit it, or mask its results. Reads and lists have their own tables in
``test_policies_of_reads`` and ``test_policies_of_lists``.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import orjson
from mcp.client.session import ClientSession
from mcp.shared.message import SessionMessage

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import LOCAL, Call, Outcome, new_id
from retinue.hub.scheduling.signatures import sign
from retinue.mesh.guard.trace_guard import new_trace
from retinue.oci.registry import publish_workflow
from retinue.parts.opening import open_parts
from retinue.runtime.agent_core import open_agent
from retinue.runtime.commands.own_mesh import open_own_mesh
from retinue.runtime.endpoints.agent_mcp import McpEndpoints
from retinue.runtime.launch import Start
from retinue.runtime.loading.targets import Target
from retinue.runtime.serving import Stop
from retinue.runtime.stdio.agent import stdio_parts
from retinue.thinking.completion import CompletionReply, CompletionRequest, ToolMessage
from tests.doors import test_policies
from tests.doors.test_policies import NUMBERS, Bank, answer, call, open_bank, read_approval
from tests.doors.test_run_approvals import wait_for_question
from tests.mcp.clients import connect, texts
from tests.support.thinking import ScriptedModel, say, think, use
from tests.system import NOON, WAIT_S, Reply, System, Wire

Way = Callable[[Bank], Awaitable[Reply]]

ON_REFUNDS = 'principal, action == Retinue::Action::"call", resource'
REFUNDS = 'when { resource.name like "refund*" };'
DENY = f'@id("no-refunds") @reason("refunds are closed") forbid({ON_REFUNDS}) {REFUNDS}'
ASK = f'@id("ask-first") @reason("a person pays") @effect("approve") forbid({ON_REFUNDS}) {REFUNDS}'
LIMIT = (
    f'@id("few") @reason("pay slowly") @effect("limit") @limit("3 per hour") forbid({ON_REFUNDS}) {REFUNDS}'
)
MASK = f'@id("mask") @effect("redact") @results("/none") forbid({ON_REFUNDS}) {REFUNDS}'


def reply_of(text: str) -> Reply:
    return Reply(200, {}, text.encode())


def handshake(url: str, tool: str) -> Way:
    """A call by a client of MCP 2025-11-25, which opens a session."""

    async def ask(bank: Bank) -> Reply:
        async with connect(url.format(bank=bank), "legacy") as client:
            return reply_of("\n".join(texts(await client.call_tool(tool, {"amount": 900}))))

    return ask


async def ask_without_hub(bank: Bank) -> Reply:
    """A call by a command that has the mesh in its own process."""
    async with open_own_mesh(bank.system.settings, bank.system.state) as process:
        request = Call(new_id(), "refund", {"amount": 900}, LOCAL, "command", new_trace(), agent="bank")
        return reply_of(render(await process.dispatcher.dispatch(request)))


def render(outcome: Outcome) -> str:
    return str(outcome.value) if outcome.error is None else outcome.error.message


async def ask_on_stdio(bank: Bank) -> Reply:
    """A call of an agent that is served on standard input and output, over streams of memory."""
    agent = make_branch(bank.refunds)
    async with AsyncExitStack() as stack:
        system, target = bank.system, Target(agent, ())
        start = Start(system.settings, system.state, lambda line: None, Stop())
        process = await stack.enter_async_context(open_agent("stdio", target, None, start))
        parts = await stack.enter_async_context(open_parts(process, stdio_parts(target)))
        server = await process.get(McpEndpoints).own.open()
        await stack.enter_async_context(parts.running())
        sending, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writing, receiving = anyio.create_memory_object_stream[SessionMessage](0)
        serving = asyncio.create_task(server.serve_streams(reading, writing))
        async with ClientSession(receiving, sending) as session:
            await session.initialize()
            result = await session.call_tool("refund_own", {"amount": 900})
        await asyncio.wait([serving])
        return reply_of("\n".join(texts(result)))


def make_branch(refunds: list[int]) -> Agent:
    """An agent that calls itself, and the bank as an MCP server; and that works by prompts."""
    branch = Agent("branch", version="1.0.0")

    @branch.skill(expose=True)
    async def refund_own(amount: int) -> str:
        """Pays money back."""
        refunds.append(amount)
        return f"refunded {amount}"

    @branch.skill(expose=True)
    async def ask_own(amount: int, ctx: Context) -> Any:
        """Asks the agent itself."""
        return await ctx.call("refund_own", {"amount": amount}, agent="branch")

    @branch.skill(expose=True)
    async def ask_by_mcp(amount: int, ctx: Context) -> Any:
        """Asks the bank as an MCP server."""
        async with ctx.mcp("bank") as server:
            return await server.call_tool("refund", {"amount": amount})

    @branch.skill(read_only=True)
    async def find_amount() -> int:
        """Tells how much to pay back."""
        return 900

    @branch.skill(roles=["execute"])
    async def refund_by_prompt(prompt: str) -> str:
        """Pays money back as the prompt says."""
        refunds.append(900)
        return "refunded 900"

    return branch


def make_model() -> ScriptedModel:
    """A model that asks for a refund, and says what came of it."""

    def tell(request: CompletionRequest) -> CompletionReply:
        (message,) = (message for message in request.messages if isinstance(message, ToolMessage))
        return say(str(message.results[0].content[0].value))

    return ScriptedModel(use(("bank__refund", {"amount": 900})), tell)


def orchestrate(**arguments: Any) -> Way:
    return lambda bank: bank.wire.call(bank.hub.url, "orchestrate", arguments)


async def follow(bank: Bank, run: str) -> Reply:
    """What a run has come to."""
    async with asyncio.timeout(WAIT_S):
        while True:
            shown = await bank.wire.call(
                bank.hub.url, "show_run", {"run": run}, authorization=bank.system.token
            )
            if "result" in shown.json and shown.result["status"] != "running":
                return shown
            await asyncio.sleep(0.02)


async def start_run(bank: Bank) -> Reply:
    """A run that is started by a call which returns at once."""
    arguments = {"workflow": test_policies.STEPS, "input": {}}
    started = await bank.wire.call(bank.hub.url, "start_run", arguments, authorization=bank.system.token)
    return await follow(bank, started.result["run"])


async def run_schedule(bank: Bank) -> Reply:
    """A run of a schedule."""
    own = {"authorization": bank.system.token}
    name = f"nightly-{next(NUMBERS)}"
    text = orjson.dumps({**test_policies.STEPS, "name": name, "schedule": {"cron": "0 3 * * *"}})
    await publish_workflow(bank.system.home, name, text, created=NOON)
    await bank.wire.call(bank.hub.url, "add_schedule", {"workflow": name}, **own)
    ran = await bank.wire.call(
        bank.hub.url, "change_schedule", {"schedule": name, "change": "run_now"}, **own
    )
    return await follow(bank, ran.result["run"])


async def send_webhook(bank: Bank) -> Reply:
    """A run that a signed request to the address of a trigger starts."""
    name, event, at = f"hook-{next(NUMBERS)}", f"evt_{next(NUMBERS)}", int(time.time())
    text = orjson.dumps({**test_policies.STEPS, "name": name, "on": {"webhook": {}}})
    await publish_workflow(bank.system.home, name, text, created=NOON)
    own = {"authorization": bank.system.token}
    added = (await bank.wire.call(bank.hub.url, "add_schedule", {"workflow": name}, **own)).result
    signature = sign(added["secret"], event, at, b"{}")
    headers = {"webhook_id": event, "webhook_timestamp": str(at), "webhook_signature": signature}
    taken = await bank.wire.post(added["url"], b"{}", **headers)
    return await follow(bank, taken.json["run"])


THINK = {"workflow": think(tools=["bank/*"]), "input": {}}
RUNS: dict[str, Way] = {
    "a step of a workflow": test_policies.WAYS["a step of a workflow"],
    "a step that thinks": call("{bank.hub.url}", "orchestrate_workflow", **THINK),
    "orchestrate": orchestrate(
        prompt="Pay 900 back", preferences={"agent": "branch", "workflow": "direct", "cache": False}
    ),
    "orchestrate_parallel": call(
        "{bank.hub.url}", "orchestrate_parallel", prompt="Pay 900 back", agents=["branch"], mode="all"
    ),
    "start_run": start_run,
    "a schedule": run_schedule,
    "a webhook": send_webhook,
}
"""Ways by a run, which waits for a person."""

TASKS = {name: way for name, way in test_policies.WAYS.items() if "A2A" in name}
"""Ways by a task, which waits for a person.

`test_a_task_waits_for_a_yes_from_anywhere_and_goes_on_by_itself` answers them.
"""

CALLS: dict[str, Way] = {
    **{name: way for name, way in test_policies.WAYS.items() if name not in {**RUNS, **TASKS}},
    "call_read_only_skill": call(
        "{bank.hub.url}", "call_read_only_skill", skill="refund", arguments={"amount": 900}
    ),
    "REST of the hub, call_skill": lambda bank: bank.post(
        "/tools/call/call_skill", {"skill": "refund", "arguments": {"amount": 900}}
    ),
    "MCP of 2025-11-25": handshake("{bank.hub.url}/mcp", "bank__refund"),
    "MCP of 2025-11-25 of the agent at the hub": handshake("{bank.hub.url}/agents/bank/mcp", "refund"),
    "ctx.mcp": call("{bank.hub.url}", "ask_by_mcp", amount=900),
    "a command without a hub": ask_without_hub,
}
"""Ways by a call that fails while it has no yes, to agents behind processes that keep approvals."""

DIRECT: dict[str, Way] = {
    **test_policies.DIRECT,
    "MCP of 2025-11-25 of the agent": handshake("{bank.bank.url}/mcp", "refund"),
    "the agent that calls itself": call("{bank.hub.url}", "ask_own", amount=900),
    "stdio": ask_on_stdio,
}
"""Ways to a process that keeps no approvals, and counts its own calls."""

WAYS = {**CALLS, **RUNS, **TASKS}


async def open_matrix(system: System, wire: Wire, policies: str) -> Bank:
    """A mesh in which the refund is marked as reading, because `call_read_only_skill` calls only these."""
    table = system.settings.hub.model_copy(update={"hints": {"bank/refund": {"read_only": True}}})
    system.settings = system.settings.model_copy(update={"hub": table})
    bank = await open_bank(system, wire, policies, durable=True)
    for agent in (make_branch(bank.refunds), make_model().agent):
        await system.start_agent(agent)
    await wire.call(bank.hub.url, "refresh_agents", {})
    return bank


async def test_a_forbidden_skill_runs_on_no_way_and_the_answer_names_the_policy(
    system: System, wire: Wire
) -> None:
    bank = await open_matrix(system, wire, DENY)
    for name, ask in {**WAYS, **DIRECT}.items():
        reply = await ask(bank)
        assert bank.refunds == [], name
        assert b"refunds are closed (no-refunds)" in reply.body, (name, reply.body)


async def test_a_call_that_needs_a_person_runs_once_after_a_yes_on_every_way(
    system: System, wire: Wire
) -> None:
    bank = await open_matrix(system, wire, ASK)
    for name, ask in CALLS.items():
        bank.refunds.clear()
        refused = await ask(bank)
        assert bank.refunds == [], name
        assert b"a person pays (ask-first)" in refused.body, (name, refused.body)
        approval = read_approval(refused)
        assert read_approval(await ask(bank)) == approval, name  # the same question, not another one
        assert (await answer(bank, approval, "yes")).result["state"] == "approved"
        done = await ask(bank)
        assert bank.refunds == [900], (name, done.body)
        again = await ask(bank)
        assert bank.refunds == [900], (name, again.body)
        assert read_approval(again) != approval, name
    for name, ask in DIRECT.items():
        bank.refunds.clear()
        reply = await ask(bank)
        assert bank.refunds == [], name
        assert b"needs the approval of a person, and this process cannot ask" in reply.body, (
            name,
            reply.body,
        )


async def test_a_run_waits_for_a_person_on_every_way(system: System, wire: Wire) -> None:
    bank = await open_matrix(system, wire, ASK)
    for name, ask in RUNS.items():
        for verdict in ("no", "yes"):
            bank.refunds.clear()
            waiting = asyncio.ensure_future(ask(bank))
            (question,) = await wait_for_question(bank)
            assert (bank.refunds, waiting.done()) == ([], False), name
            await answer(bank, question["approval"], verdict, "enough")
            reply = await waiting
            assert bank.refunds == ([900] if verdict == "yes" else []), (name, reply.body)
            assert (b"denied by a person: enough" in reply.body) is (verdict == "no"), (name, reply.body)


async def test_a_limit_counts_the_calls_of_all_ways_together(system: System, wire: Wire) -> None:
    bank = await open_matrix(system, wire, LIMIT)
    for number, (name, ask) in enumerate(WAYS.items()):
        reply = await ask(bank)
        assert len(bank.refunds) == min(number + 1, 3), name
        limited = re.search(rb"/refund\w* is limited to 3 per hour: pay slowly \(few\)", reply.body)
        assert (limited is not None) == (number >= 3), (name, reply.body)
    error = (await WAYS["/execute of the hub"](bank)).error
    assert error["data"]["type"] == "busy"
    assert 3_500 < error["data"]["retry_after_s"] <= 3_600


async def test_a_masked_result_leaves_on_no_way(system: System, wire: Wire) -> None:
    bank = await open_matrix(system, wire, MASK)
    for name, ask in {**WAYS, **DIRECT}.items():
        bank.refunds.clear()
        reply = await ask(bank)
        assert bank.refunds == [900], name
        assert b"withheld" in reply.body, (name, reply.body)
        assert b"refunded" not in reply.body, (name, reply.body)


LARGE = DENY.replace("when {", "when { context.args has amount && context.args.amount > 100 &&")
LAUNDERED = {
    "name": "w",
    "steps": [
        {"id": "find", "skill": "find_amount", "transform": {"sum": "${{ steps.find.output }}"}},
        {"id": "pay", "skill": "refund", "with": {"amount": "${{ steps.find.output.sum }}"}},
    ],
}


async def test_policies_read_the_value_that_a_step_has_made(system: System, wire: Wire) -> None:
    bank = await open_matrix(system, wire, LARGE)
    arguments = {"workflow": LAUNDERED, "input": {}}
    reply = await wire.call(bank.hub.url, "orchestrate_workflow", arguments)
    assert b"refunds are closed (no-refunds)" in reply.body
    assert bank.refunds == []


async def test_a_request_that_is_sent_again_is_decided_anew(system: System, wire: Wire) -> None:
    bank = await open_bank(system, wire, LARGE)
    assert (await call("{bank.hub.url}", amount=5)(bank)).result == "refunded 5"
    sent = next(one for one in system.recording.exchanges if one.to == "bank" and one.path == "/execute")
    body = {**sent.request, "params": {"amount": 900}}
    headers = {
        name.replace("-", "_"): text for name, text in sent.headers.items() if name != "content-length"
    }
    assert '"policy":' in headers["x_retinue_trace"]  # the note of the hub, which has permitted it
    reply = await wire.post(f"{bank.bank.url}/execute", body, **headers)
    assert b"refunds are closed (no-refunds)" in reply.body
    assert bank.refunds == [5]
