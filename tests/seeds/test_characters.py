"""Jules and Eddy as ElizaOS character files: served, asked, delegated to (exchange 0-6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.character import CharacterAgent
from retinue.authoring.context import Context
from retinue.core.call import Answer
from retinue.core.errors import ExecutionFailedError, InvalidSettingError
from retinue.runtime.loading.targets import load_target
from tests.requirements import requirement
from tests.seeds.seed_000 import ACTION, load_block
from tests.system import System, Wire

PARAMETERS = {
    "code_to_debug": "def f(:",
    "programming_language": "python",
    "error_log": "SyntaxError",
    "desired_outcome": "It runs",
}
"""The parameters of the seed's task."""

FOLDER = Path(__file__).parent / "characters"


def load(name: str) -> CharacterAgent:
    agent = load_target(name, folder=FOLDER).agent
    assert isinstance(agent, CharacterAgent)
    return agent


@requirement("W-23")
@requirement("W-11")
async def test_a_character_file_with_comments_answers_the_summary_of_the_seed(
    system: System, wire: Wire
) -> None:
    served = await system.start_agent(load("Jules.json"))
    reply = await wire.call(served.url, "query_capabilities", {"query_type": "summary"})
    assert reply.result == load_block("summary.json")
    done = await wire.call(served.url, ACTION, {"code_to_debug": "retrun 1"})
    assert done.result == {"fixed_code": "return 1", "language": "python"}


@requirement("W-23")
@requirement("W-18")
@requirement("W-20")
async def test_eddy_asks_three_ranks_them_names_the_dead_one_and_delegates_to_the_best(
    system: System, wire: Wire
) -> None:
    await system.start_agent(load("Jules.json"))
    await system.start_agent(Agent("half", version="1.0.0", topics=["Python"]))
    dead = await system.start_agent(Agent("dead", version="1.0.0", topics=["Python", "Debugging"]))
    eddy = await system.start_agent(load("Eddy.json"))
    hub = await system.start_hub()
    await dead.stop()
    found = (await wire.call(eddy.url, "FIND_COLLEAGUE", {"capabilities": ["python", "debugging"]})).result
    assert found == {"ranked": ["Jules", "half"], "silent": ["dead"]}
    best = found["ranked"][0]
    task = {
        "performative": "TASK_REQUEST",
        "sender": {"agent_id": "Eddy"},
        "receiver": {"agent_id": best},
        "payload": {"task_parameters": {"code_to_debug": "retrun 1"}},
    }
    accepted = await wire.post(f"{hub.url}/messages", task, prefer="respond-async")
    assert (accepted.status, accepted.json["performative"]) == (202, "TASK_ACCEPT")
    asked = {"reference": accepted.json["payload"]["task_id_assigned"]}
    question = {"performative": "QUERY_REF", "receiver": {"agent_id": best}, "payload": asked}
    async with asyncio.timeout(60):
        while (reply := (await wire.post(f"{hub.url}/messages", question)).json)[
            "performative"
        ] != "INFORM_RESULT":
            await asyncio.sleep(0.01)
    assert reply["payload"]["result_details"]["fixed_code"] == "return 1"


async def test_an_action_that_nothing_runs_is_refused_with_what_to_do_and_is_no_capability_now() -> None:
    eddy = load("Eddy.json")
    with pytest.raises(ExecutionFailedError, match="CHAT of Eddy is not callable") as caught:
        await eddy.call("CHAT", {"prompt": "hello"})
    assert '"retinue": {"model": "claude"}' in caught.value.remedy
    for wanted in ("chat", "Small-Talk"):
        asked = {"query_type": "specific", "query_parameters": {"capabilities": [wanted, "delegation"]}}
        reply = await eddy.call("query_capabilities", asked)
        assert (reply["matched_capabilities"], reply["missing_capabilities"]) == (["delegation"], [wanted])
        assert "not callable" in reply["reasons"][wanted]


@requirement("W-20")
@pytest.mark.parametrize("through_hub", [False, True])
async def test_a_task_for_an_action_that_nothing_runs_is_rejected_as_incapable(
    system: System, wire: Wire, through_hub: bool
) -> None:
    served = await system.start_agent(load("Eddy.json"))
    url = (await system.start_hub()).url if through_hub else served.url
    for parameters in (PARAMETERS, {"prompt": "hello"}, {}):
        task = {
            "performative": "TASK_REQUEST",
            "receiver": {"agent_id": "Eddy"},
            "payload": {"task_type": "CHAT", "task_parameters": parameters},
        }
        reply = (await wire.post(f"{url}/messages", task)).json
        assert (reply["performative"], reply["payload"]["reason_code"]) == ("TASK_REJECT", "incapable")
        assert "no function is bound to it" in reply["payload"]["reason_text"]
        assert '"retinue": {"model": "claude"}' in reply["payload"]["reason_text"]


async def test_a_model_answers_the_other_actions_as_the_character() -> None:
    eddy = load("Eddy.json")
    told: list[tuple[str, str, Any]] = []

    async def answer_as(context: Context, persona: str, task: str, data: Any) -> Answer:
        told.append((persona, task, data))
        return Answer("Hello, I am Eddy.")

    eddy.answer_with(answer_as, 90)
    assert await eddy.call("CHAT", {"prompt": "hello", "context": {"a": 1}}) == "Hello, I am Eddy."
    ((persona, task, data),) = told
    assert "You are Eddy" in persona
    assert "finds the right colleague" in persona
    assert task.endswith("The request: hello")
    assert data == {"a": 1}
    asked = {"query_type": "specific", "query_parameters": {"capabilities": ["chat"]}}
    assert (await eddy.call("query_capabilities", asked))["match_result"] is True
    assert [skill.timeout_s for skill in eddy.skills] == [None, 90]


def test_only_named_actions_are_exposed_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    assert [(one.id, one.visibility) for one in load("Eddy.json").skills] == [
        ("FIND_COLLEAGUE", "exposed"),
        ("CHAT", "mesh"),
    ]
    (tmp_path / "X.json").write_text('{"name": "X", "bio": "x", "retinue": {"expose": ["FLY"]}}')
    with pytest.raises(InvalidSettingError, match="there is no action 'FLY'"):
        load_target("X.json", folder=tmp_path)


def test_a_bound_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Y.json").write_text('{"name": "Y", "bio": "y", "retinue": {"bind": "none.py"}}')
    with pytest.raises(InvalidSettingError, match="no file"):
        load_target("Y.json", folder=tmp_path)


def test_a_model_is_opened_only_where_actions_are_left_for_it(tmp_path: Path) -> None:
    text = '{"name": "Z", "bio": "z", "actions": [{"name": "ACT"}], "retinue": {"model": "claude"}}'
    (tmp_path / "Zed.json").write_text(text)
    assert load_target("Zed.json", folder=tmp_path).model == "claude"
    (tmp_path / "Zed.py").write_text("def act() -> int:\n    return 1\n")
    assert load_target("Zed.json", folder=tmp_path).model is None


async def test_an_agent_json_may_have_a_character_as_its_entry(tmp_path: Path) -> None:
    (tmp_path / "Who.json").write_text('{"name": "Who", "bio": "w", "actions": [{"name": "ACT"}]}')
    (tmp_path / "agent.json").write_text('{"entry": "Who.json", "access": {"receive": ["local"]}}')
    target = load_target("agent.json", folder=tmp_path)
    assert (target.agent.name, target.access.receive) == ("Who", ("local",))
