"""Tools that run as tasks only (2025-11-25): a real server of the SDK, as a program and over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import AgentUnreachableError, CallTimedOutError, RemoteFaultError
from retinue.mcp.codec.messages import Message, Reply
from retinue.mcp.codec.tasks import RELATED_KEY
from retinue.mcp.stdio.server_program import ServerProgram
from retinue.mcp.upstream.flood import FloodMeter
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.mcp.upstream.open_calls import OpenCalls
from retinue.mcp.upstream.questions import ServerQuestions
from retinue.mcp.upstream.tasks import ServerTasks
from retinue.web.http_client import HttpClient
from tests.mcp.clients import connect
from tests.mcp.upstream.task_server import STAGES, TOOLS, TaskServer
from tests.mcp.upstream.test_imports import WAIT_S, Imports, Person, is_ready, running
from tests.serving import serve_app
from tests.system import System

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]


@asynccontextmanager
async def over_http(server: TaskServer) -> AsyncIterator[Imports]:
    async with serve_app(server.server.streamable_http_app()) as url, HttpClient() as http:
        spec = ImportSpec("slow", lambda: HttpTransport("slow", http, f"{url}/mcp", {}), url)
        async with running(spec) as imports:
            await imports.until("slow", is_ready)
            yield imports


@pytest.fixture(params=["program", "http"])
async def imports(request: pytest.FixtureRequest) -> AsyncIterator[Imports]:
    if request.param == "http":
        async with over_http(TaskServer()) as found:
            yield found
        return
    command = [sys.executable, "-m", "tests.mcp.upstream.task_server"]
    spec = ImportSpec("slow", lambda: ServerProgram("slow", command, {}, own=os.environ), "a program")
    async with running(spec) as found:
        await found.until("slow", is_ready)
        yield found


async def read_tasks(imports: Imports) -> list[Mapping[str, Any]]:
    """What the server says of its tasks."""
    rows: list[Mapping[str, Any]] = (await imports.call("state")).get()["tasks"]
    return rows


async def test_a_tool_that_runs_as_a_task_only_is_called_and_its_states_are_progress(
    imports: Imports,
) -> None:
    person = Person()
    outcome = await imports.call("research", {"topic": "owls"}, person)
    assert outcome.get() == "research: owls"
    assert person.said == [*STAGES, "done"]
    (task,) = await read_tasks(imports)
    assert task["polls"] == len(STAGES) + 1
    # it is kept longer than its call may take
    assert WAIT_S * 1000 < task["ttl"] <= (WAIT_S + 60) * 1000


async def test_a_question_of_a_task_reaches_the_caller_of_its_call(imports: Imports) -> None:
    people = [Person(name) for name in ("Ada", "Bob", "Cleo")]
    outcomes = await asyncio.gather(*(imports.call("ask", {}, person) for person in people))
    assert [outcome.get() for outcome in outcomes] == ["for Ada", "for Bob", "for Cleo"]
    assert people[0].said == ["who is it for?", "Who is it for?"]


async def test_a_state_that_the_server_tells_ends_the_wait_for_the_next_look(imports: Imports) -> None:
    person = Person()
    assert (await imports.call("told", {"topic": "news"}, person)).get() == "told: news"
    assert person.said == ["told so"]
    assert [task["polls"] for task in await read_tasks(imports)] == [0]


async def test_a_task_ends_with_the_time_limit_of_its_call_and_with_its_caller(imports: Imports) -> None:
    async def until(*statuses: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while [task["status"] for task in await read_tasks(imports)] != list(statuses):
                await asyncio.sleep(0.01)

    late = await imports.call("hang", within_s=1.5)
    assert isinstance(late.error, CallTimedOutError)
    await until("cancelled")
    given_up = asyncio.create_task(imports.call("hang"))
    await until("cancelled", "working")
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await until("cancelled", "cancelled")


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("fail", "server slow: the library is closed: Task has no result"),
        ("stop", "server slow: out of quota"),
        ("expire", "server slow: the state of its task is not known: Task has expired"),
    ],
)
async def test_a_task_that_fails_says_why(imports: Imports, tool: str, text: str) -> None:
    outcome = await imports.call(tool)
    assert isinstance(outcome.error, RemoteFaultError)
    assert outcome.error.message == text


class Sessionless(Person):
    """A person at a client of 2026-07-28."""

    is_sessionless = True


async def test_a_server_of_both_eras_runs_tasks_in_its_session_for_every_client() -> None:
    server = TaskServer()
    async with over_http(server) as imports:
        assert (await imports.call("state", {}, Sessionless())).get() == {"tasks": []}
        assert (await imports.call("research", {"topic": "owls"}, Sessionless())).get() == "research: owls"
        assert (await imports.call("ask", {}, Sessionless("Bob"))).get() == "for Bob"


async def test_a_skill_calls_a_tool_that_runs_as_a_task_at_a_url(system: System) -> None:
    server = TaskServer()
    url = await system.stack.enter_async_context(serve_app(server.server.streamable_http_app()))
    agent = Agent("reader-agent")

    @agent.skill(expose=True)
    async def read(ctx: Context) -> list[str]:
        async with ctx.mcp(f"{url}/mcp") as tools:
            return [str(await tools.call_tool("research", {"topic": topic})) for topic in ("owls", "cats")]

    served = await system.start_agent(agent)
    async with connect(served) as client:
        result = await client.call_tool("read", {})
    assert result.structured_content == {"result": ["research: owls", "research: cats"]}
    # the tools are listed once, to know which run as tasks
    assert server.requests.count("tools/list") == 1


async def test_a_call_that_ends_before_its_task_exists_cancels_it_when_it_does() -> None:
    server = TaskServer()
    async with over_http(server) as imports:
        call = asyncio.create_task(imports.call("late"))
        async with asyncio.timeout(WAIT_S):
            while "tools/call late" not in server.requests:
                await asyncio.sleep(0.01)
        call.cancel()
        server.may_create.set()
        await asyncio.gather(call, return_exceptions=True)
        assert [task.status for task in server.tasks.values()] == ["cancelled"]


async def test_a_call_whose_task_was_created_is_not_repeated_when_the_server_is_lost() -> None:
    server = TaskServer()
    async with HttpClient() as http:
        app = server.server.streamable_http_app()
        async with serve_app(app) as url:
            spec = ImportSpec("slow", lambda: HttpTransport("slow", http, f"{url}/mcp", {}), url)
            async with running(spec) as imports:
                await imports.until("slow", is_ready)
                call = asyncio.create_task(imports.call("hang"))
                async with asyncio.timeout(WAIT_S):
                    while not server.tasks:
                        await asyncio.sleep(0.01)
                # the session is forgotten, as by a server that was started again
                server.server.session_manager._server_instances.clear()
                outcome = await call
    assert isinstance(outcome.error, AgentUnreachableError)
    assert outcome.error.sent
    assert len(server.tasks) == 1


async def test_tools_that_cannot_be_called_are_left_out_and_named() -> None:
    async with over_http(TaskServer(offers_tasks=False)) as imports:
        listing = await imports.until("slow", is_ready)
        assert [skill.id for skill in listing.record.skills] == ["state"]
        server = imports.servers.find("slow")
        assert server is not None
        assert server.uncallable == tuple(sorted(TOOLS))


def make_question(task_id: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    related = {RELATED_KEY: {"taskId": task_id}}
    params = {"message": f"{task_id}: who?", "requestedSchema": schema, "_meta": related}
    return {"jsonrpc": "2.0", "id": f"q-{task_id}", "method": "elicitation/create", "params": params}


async def test_a_question_of_a_task_that_no_call_has_reaches_no_other_call() -> None:
    """It may come before the task that it names is known; without such a task it is refused."""
    answers: list[Message] = []

    async def send(message: Message) -> None:
        answers.append(message)

    open_calls, tasks, may_end = OpenCalls("slow"), ServerTasks("slow", hold_s=0.05), asyncio.Event()
    questions = ServerQuestions(send, FloodMeter(), open_calls, tasks)
    other, person = Person("Bob"), Person("Ada")

    async def create() -> Reply:
        return Reply({"task": {"taskId": "mine", "status": "working", "pollInterval": 50}}, None)

    async def ask(method: str, named: Mapping[str, Any]) -> Reply:
        await may_end.wait()
        return Reply({}, None)

    async with open_calls.running("1", "other", other):
        early = await questions.begin(make_question("mine"), None)
        running_task = asyncio.create_task(tasks.run(create(), ask, person, can_cancel=False))
        strange = await questions.begin(make_question("strange"), None)
        assert early is not None
        assert strange is not None
        await asyncio.gather(early, strange)
        running_task.cancel()
        await asyncio.gather(running_task, return_exceptions=True)
    assert (other.said, person.said) == ([], ["mine: who?"])
    by_id = {answer.id: answer.document for answer in answers}
    assert by_id["q-mine"]["result"]["content"] == {"name": "Ada"}
    assert "no task of a call in flight" in by_id["q-strange"]["error"]["message"]
