"""Requests that earlier calls served, and requests that nobody serves, at the surfaces that search."""

from __future__ import annotations

from typing import Any

from retinue.authoring.agent import Agent
from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.mesh.directory.directory import Directory
from retinue.mesh.history.records import Hashes
from retinue.mesh.history.search_history import EndedCall, SearchHistory
from retinue.testing import ModelTurn, ScriptedModel
from tests.a2a.wire import parts_of, send, state_of
from tests.doors.office import Office
from tests.doors.test_a2a_text import ASKS, DONE, make_agents
from tests.doors.test_think_choice import make_met, make_writer, start
from tests.system import Hub, System, Wire

GYM = "gym session"
MOON = "a taxi to the moon"


async def serve(hub: Hub, agent: str, skill: str, text: str, times: int, caller: Principal = LOCAL) -> None:
    """The skill has served this request."""
    history, directory = hub.process.get(SearchHistory), hub.process.get(Directory)
    history.explored = 0.0
    await directory.ensure_fresh()
    entry = directory.find_named(agent)
    assert entry is not None
    for number in range(times):
        search = history.note_search(caller, text, [(entry, skill)])
        ended = EndedCall(f"t{number}", skill, agent, caller.id, False, "done", None, str(search))
        history.keep(ended)


def wishes_of(hub: Hub, state_key: bytes, text: str) -> int:
    """How many wishes there are for these words."""
    stems = Hashes(state_key).of_request(text)
    return sum(wish.stems == stems for wish in hub.process.get(SearchHistory).wishes.list_all())


async def start_text_hub(system: System) -> Hub:
    for agent in make_agents():
        await system.start_agent(agent)
    return await system.start_hub(dashboard=True)


async def test_a_text_goes_to_the_skill_that_served_it_though_no_word_of_its_card_is_in_it(
    system: System, wire: Wire
) -> None:
    hub = await start_text_hub(system)
    asked = (await send(wire, hub.url, GYM))["task"]
    assert state_of(asked) == ASKS
    assert wishes_of(hub, system.state.mesh_key(), GYM) == 1, "searched twice, for the skill and for the list"
    await serve(hub, "office", "greet", GYM, 5, ANONYMOUS)
    task = (await send(wire, hub.url, GYM))["task"]
    assert (state_of(task), parts_of(task)) == (DONE, [{"text": f"hello {GYM}"}])
    assert wishes_of(hub, system.state.mesh_key(), GYM) == 1, "that of before"


async def test_a_text_that_cards_are_sure_of_stays_sure_beside_a_skill_that_served_similar_texts(
    system: System, wire: Wire
) -> None:
    hub = await start_text_hub(system)
    await serve(hub, "office", "greet", "say hello to Berlin before the forecast tomorrow", 6, ANONYMOUS)
    text = "weather forecast for Berlin tomorrow"
    found = hub.process.get(SearchHistory).learn_for(ANONYMOUS, text)
    assert found is not None
    task = (await send(wire, hub.url, text))["task"]
    assert (state_of(task), parts_of(task)) == (DONE, [{"text": f"sunny: {text}"}])


async def test_a_search_tells_what_served_the_request_and_which_score_its_card_has(
    system: System, wire: Wire
) -> None:
    hub = await start_text_hub(system)

    async def find(text: str) -> Any:
        asked = {"query": text, "why": "office", "detailed": True}
        return (await wire.call(hub.url, "find_skills", asked, authorization=system.token)).result

    reply = await find("somebody says hello")
    assert (reply["why"]["place"], reply["why"]["skill"]) == (1, "greet")
    score = f"the score of greet is {reply['why']['score']:.2f}: {reply['why']['score']:.2f} for its card"
    assert f"{score}; no call of it counts yet" in reply["why"]["reasons"]
    assert (reply["learned"][0]["skill"], reply["learned"][0]["calls"]) == ("greet", 0.0)
    page = await wire.get(f"{hub.url}/ui/agents?q=hello", authorization=system.token, accept="text/html")
    assert "for its card; no call of it counts yet" in page.body.decode()
    await serve(hub, "office", "greet", GYM, 5)
    reply = await find(GYM)
    assert (reply["fit"]["likely"], "gap" in reply) == (True, False)
    why = reply["why"]
    assert (why["place"], why["skill"]) == (1, "greet")
    assert "it is number 1 by earlier calls; greet does not speak of: gym, session" in why["reasons"]
    assert any(reason.startswith("the score of greet is ") for reason in why["reasons"])
    assert wishes_of(hub, system.state.mesh_key(), GYM) == 0
    agents = {"query": GYM}
    reply = (await wire.call(hub.url, "list_agents", agents, authorization=system.token)).result
    assert [row["name"] for row in reply["agents"]] == ["office"]


async def test_a_wish_is_noted_where_a_model_searches_and_where_agents_are_asked(office: Office) -> None:
    searches = ModelTurn(calls=[("find_skills", {"what": "repairs of bicycles"})])
    await start(office, make_met(), ScriptedModel(searches, "nobody"))
    key = office.system.state.mesh_key()
    think = {"prompt": "How is the weather in Rome?", "preferences": {"workflow": "think"}}
    await office.get("orchestrate", think)
    assert wishes_of(office.hub, key, "repairs of bicycles") == 1
    asked = {"query_type": "specific", "query_parameters": {"capabilities": ["juggling"]}}
    await office.get("query_capabilities", {**asked, "agent": ["met"]})
    assert wishes_of(office.hub, key, "juggling") == 0, "others may be able"
    for _ in range(2):
        await office.get("query_capabilities", {**asked, "agent": "*"})
    assert wishes_of(office.hub, key, "juggling") == 1
    able = {"query_type": "specific", "query_parameters": {"capabilities": ["weather"]}, "agent": "*"}
    await office.get("query_capabilities", able)
    assert wishes_of(office.hub, key, "weather") == 0


async def test_a_prompt_that_nothing_answers_is_a_wish(office: Office) -> None:
    key = office.system.state.mesh_key()
    refused = await office.ask("orchestrate", {"prompt": MOON})
    assert refused.error is not None, "nobody has the role"
    assert wishes_of(office.hub, key, MOON) == 1
    await start(office, make_met(), make_writer())
    assert (await office.get("orchestrate", {"prompt": MOON}))["agents"] == ["writer"]
    assert wishes_of(office.hub, key, MOON) == 0, "it was answered"
    assert (await office.get("orchestrate", {"prompt": MOON}))["metadata"]["cached"]
    assert wishes_of(office.hub, key, MOON) == 0
    broken = Agent("broken", version="1.0.0")

    @broken.skill("execute", roles=["execute"])
    async def execute(prompt: str) -> str:
        raise ValueError(prompt)

    await start(office, broken)
    failing = {"prompt": "a rocket to the sun", "preferences": {"agent": "broken"}}
    assert (await office.ask("orchestrate", failing)).error is not None
    assert wishes_of(office.hub, key, "a rocket to the sun") == 1
    sure = {"prompt": "How is the weather in Rome?"}
    await office.get("orchestrate", sure)
    assert wishes_of(office.hub, key, sure["prompt"]) == 0
    begun = await office.get("start_run", {"workflow": "auto", "input": {"prompt": "a ship to the pole"}})
    await office.follow(begun["run"])
    office.hub.mesh.events.flush()
    assert wishes_of(office.hub, key, "a ship to the pole") == 0
