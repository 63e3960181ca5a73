"""A hub as an A2A agent for plain text: the skill is found for the words, or the client is asked for it."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.a2a.server import choosing
from retinue.authoring.agent import Agent
from retinue.hub.text_skills import MAX_OPTIONS
from retinue.mesh.history.search_history import SearchHistory
from retinue.web.issued_tokens import TokenFile
from tests.a2a.wire import ask, message, naming, parts_of, read_events, send, state_of
from tests.system import Hub, System, Wire

UNSURE = "frobnicate"
ASKS = "TASK_STATE_INPUT_REQUIRED"
DONE = "TASK_STATE_COMPLETED"


def make_agents() -> tuple[Agent, Agent]:
    office = Agent("office", version="1.0.0", description="An office")

    @office.skill
    async def greet(name: str) -> str:
        """Says hello to somebody."""
        return f"hello {name}"

    @office.skill(destructive=True)
    async def shred(document: str) -> str:
        """Destroys confidential papers."""
        return "gone"

    @office.skill
    async def book_room(room: str, day: str) -> str:
        """Reserves a meeting place."""
        return f"{room} on {day}"

    weather = Agent("weather", version="1.0.0", description="Weather reports")

    @weather.skill
    async def forecast(place: str) -> str:
        """Tells the weather forecast of a city for tomorrow."""
        return f"sunny: {place}"

    return office, weather


@pytest.fixture
async def hub(system: System) -> Hub:
    for agent in make_agents():
        await system.start_agent(agent)
    return await system.start_hub()


async def ask_again(wire: Wire, url: str, task: Any, *parts: Any, **fields: Any) -> Any:
    """The task after the client's next message in it."""
    return (await send(wire, url, *parts, taskId=task["id"], **fields))["task"]


def text_in(task: Any) -> str:
    """The text of the last status."""
    return str(task["status"]["message"]["parts"][0]["text"])


async def test_a_text_goes_to_the_skill_that_the_search_is_sure_of(wire: Wire, hub: Hub) -> None:
    text = "weather forecast for Berlin tomorrow"
    task = (await send(wire, hub.url, text))["task"]
    assert (state_of(task), parts_of(task)) == (DONE, [{"text": f"sunny: {text}"}])
    assert task["artifacts"][0]["name"] == "forecast"
    history = hub.process.get(SearchHistory)
    assert [(one.key.skill, one.verdict) for one in history.list_records()] == [("forecast", "done")]


async def test_a_text_goes_to_orchestrate_where_a_model_is_available(system: System, wire: Wire) -> None:
    model = Agent("thinker", version="1.0.0", labels={"kind": "model"})

    @model.skill(roles=["plan", "execute", "review"], expose=True)
    async def ask_model(prompt: str) -> str:
        """Answers anything."""
        return f"thought about {prompt}"

    for agent in (*make_agents(), model):
        await system.start_agent(agent)
    hub = await system.start_hub()
    task = (await send(wire, hub.url, "weather forecast for Berlin tomorrow"))["task"]
    assert state_of(task) == DONE, task
    text, data = parts_of(task)
    assert task["artifacts"][0]["name"] == "orchestrate"
    assert "thought about" in text["text"]
    assert (data["data"]["output"], data["data"]["agents"]) == (text["text"], ["thinker"])


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("greet", f"hello {UNSURE}"),
        ("Greet", f"hello {UNSURE}"),
        (naming("greet", name="Ann"), "hello Ann"),
        ({"data": {"skill": "greet"}}, f"hello {UNSURE}"),
        ("weather forecast for Rome", "sunny: weather forecast for Rome"),
        (naming("book_room", room="4", day="Monday"), "4 on Monday"),
    ],
)
async def test_a_text_that_fits_no_skill_is_asked_for_one_and_the_answer_is_used(
    wire: Wire, hub: Hub, answer: Any, result: str
) -> None:
    task = (await send(wire, hub.url, UNSURE))["task"]
    assert state_of(task) == ASKS
    assert "greet of office: Says hello to somebody." in text_in(task)
    rows = task["status"]["message"]["metadata"]["skills"]
    assert {"greet", "book_room", "forecast"} <= {row["skill"] for row in rows}
    (row,) = [row for row in rows if row["skill"] == "book_room"]
    assert (row["agent"], row["call"]) == ("office", "book_room(room: string, day: string)")
    done = await ask_again(wire, hub.url, task, answer)
    assert (done["id"], state_of(done), parts_of(done)) == (task["id"], DONE, [{"text": result}])
    assert [one["role"] for one in done["history"]].count("ROLE_USER") == 2


async def test_a_skill_of_the_list_is_chosen_by_its_number(wire: Wire, hub: Hub) -> None:
    task = (await send(wire, hub.url, UNSURE))["task"]
    rows = task["status"]["message"]["metadata"]["skills"]
    number = [row["skill"] for row in rows].index("greet") + 1
    assert f"{number}. greet" in text_in(task)
    assert parts_of(await ask_again(wire, hub.url, task, f" {number}. ")) == [{"text": f"hello {UNSURE}"}]


async def test_an_answer_without_a_usable_choice_is_asked_again_with_the_reason(wire: Wire, hub: Hub) -> None:
    task = (await send(wire, hub.url, UNSURE))["task"]
    again = await ask_again(wire, hub.url, task, {"data": {"skill": "vanish"}})
    assert (state_of(again), "Unknown skill: vanish" in text_in(again)) == (ASKS, True)
    again = await ask_again(wire, hub.url, task, "book_room")
    assert (state_of(again), "book_room needs more than a text" in text_in(again)) == (ASKS, True)
    again = await ask_again(wire, hub.url, task, {"raw": "eA==", "mediaType": "text/plain"})
    assert state_of(again) == ASKS
    assert parts_of(await ask_again(wire, hub.url, task, "greet")) == [{"text": f"hello {UNSURE}"}]


async def test_the_next_message_of_the_context_chooses_without_naming_the_task(wire: Wire, hub: Hub) -> None:
    task = (await send(wire, hub.url, UNSURE))["task"]
    same = {"contextId": task["contextId"]}
    other = (await send(wire, hub.url, "weather forecast for Rome", **same))["task"]
    assert (other["id"] != task["id"], state_of(other)) == (True, DONE)
    done = (await send(wire, hub.url, "greet", **same))["task"]
    assert (done["id"], parts_of(done)) == (task["id"], [{"text": f"hello {UNSURE}"}])
    stranger = (await send(wire, hub.url, "greet", contextId="another"))["task"]
    assert stranger["id"] != task["id"]


async def test_words_alone_never_start_a_destructive_skill(wire: Wire, hub: Hub) -> None:
    task = (await send(wire, hub.url, "destroys confidential papers"))["task"]
    assert state_of(task) == ASKS
    assert "shred of office" in text_in(task)


async def test_the_question_is_an_ordinary_state_for_streams_old_clients_and_cancelling(
    wire: Wire, hub: Hub
) -> None:
    streamed = await ask(wire, hub.url, "SendStreamingMessage", {"message": message(UNSURE)})
    events = read_events(streamed.body)
    assert events[-1]["statusUpdate"]["status"]["state"] == ASKS
    parts = [{"kind": "text", "text": UNSURE}]
    old = {"kind": "message", "messageId": "old-1", "role": "user", "parts": parts}
    told = (await ask(wire, hub.url, "message/send", {"message": old})).result
    assert (told["kind"], told["status"]["state"]) == ("task", "input-required")
    canceled = (await ask(wire, hub.url, "CancelTask", {"id": told["id"]})).result
    assert state_of(canceled) == "TASK_STATE_CANCELED"
    late = await ask(wire, hub.url, "SendMessage", {"message": message("greet", taskId=told["id"])})
    assert late.error["code"] == -32004


async def test_a_message_without_words_is_asked_as_well(wire: Wire, hub: Hub) -> None:
    for part in ("  ", {"data": {"name": "Ann"}}):
        task = (await send(wire, hub.url, part))["task"]
        assert state_of(task) == ASKS
    assert parts_of(await ask_again(wire, hub.url, task, "greet")) == [{"text": "hello Ann"}]


async def test_a_text_for_a_skill_of_the_mesh_is_its_only_required_string(wire: Wire, hub: Hub) -> None:
    task = (await send(wire, hub.url, "Ben", metadata={"skill": "greet"}))["task"]
    assert parts_of(task) == [{"text": "hello Ben"}]


async def test_a_caller_is_shown_and_finds_only_the_agents_that_it_sees(
    system: System, wire: Wire, hub: Hub
) -> None:
    _, token = TokenFile(system.state.keys).issue(["mesh"], agents=("office", "retinue"), name="limited")
    limited = {"authorization": f"Bearer {token}"}
    params = {"message": message("weather forecast for Berlin tomorrow")}
    task = (await ask(wire, hub.url, "SendMessage", params, **limited)).result["task"]
    assert state_of(task) == ASKS
    assert "greet of office" in text_in(task)
    assert "forecast of" not in text_in(task)
    params = {"message": message("forecast", taskId=task["id"])}
    again = (await ask(wire, hub.url, "SendMessage", params, **limited)).result["task"]
    assert state_of(again) == ASKS


async def test_a_caller_with_many_open_choices_loses_the_oldest(
    wire: Wire, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "MAX_ASKING_OF_A_CALLER", 2)
    tasks = [(await send(wire, hub.url, UNSURE))["task"] for _ in range(3)]
    states = [state_of((await ask(wire, hub.url, "GetTask", {"id": task["id"]})).result) for task in tasks]
    assert states == ["TASK_STATE_FAILED", ASKS, ASKS]


def make_tidying(name: str, description: str, *, destructive: bool = False) -> Agent:
    agent = Agent(name, version="1.0.0", description="Keeps things in order")

    @agent.skill("tidy", description=description, destructive=destructive)
    async def tidy(text: str) -> str:
        return f"{name}: {text}"

    return agent


SORTED = "sorts papers of the archive by their year"


async def start_tidying(system: System, *, destructive: bool) -> Hub:
    """A hub whose calls of ``tidy`` go to the first agent, while its words fit the second one."""
    await system.start_agent(make_tidying("a-burner", "Burns everything.", destructive=True))
    await system.start_agent(make_tidying("b-sorter", f"{SORTED}.", destructive=destructive))
    return await system.start_hub()


async def test_a_text_goes_to_the_agent_that_was_found_for_it(system: System, wire: Wire) -> None:
    hub = await start_tidying(system, destructive=False)
    task = (await send(wire, hub.url, SORTED))["task"]
    assert (state_of(task), parts_of(task)) == (DONE, [{"text": f"b-sorter: {SORTED}"}])


async def test_the_number_of_a_skill_means_the_agent_beside_it(system: System, wire: Wire) -> None:
    hub = await start_tidying(system, destructive=True)
    task = (await send(wire, hub.url, SORTED))["task"]
    assert state_of(task) == ASKS
    assert "1. tidy of b-sorter" in text_in(task)
    assert parts_of(await ask_again(wire, hub.url, task, "1")) == [{"text": f"b-sorter: {SORTED}"}]


async def test_the_list_of_skills_is_bounded(system: System, wire: Wire) -> None:
    big = Agent("big", version="1.0.0", description="Has many skills")
    for number in range(MAX_OPTIONS + 5):

        @big.skill(f"skill_{number}", description="Does a thing.")
        async def work(text: str) -> str:
            return text

    await system.start_agent(big)
    hub = await system.start_hub()
    rows = (await send(wire, hub.url, UNSURE))["task"]["status"]["message"]["metadata"]["skills"]
    assert len(rows) == MAX_OPTIONS
    assert [row["skill"] for row in rows][-2:] == ["orchestrate", "find_skills"]
