"""``@agent.can``: the author's own judgement, asked on the one path of all calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue import Agent, Can, Context
from retinue.authoring.local import local_dispatcher
from retinue.core.errors import InvalidParametersError, InvalidSettingError
from tests.mesh.scripted import make_call


def _coder() -> Agent:
    agent = Agent("coder", topics=["Python"])

    @agent.skill
    def fix(code: str) -> str:
        return code

    @agent.skill(private=True)
    def hidden() -> None: ...

    return agent


async def _ask(agent: Agent, *capabilities: str, **fields: Any) -> Any:
    asked = {"query_type": "specific", "query_parameters": {"capabilities": list(capabilities)}}
    call = make_call("query_capabilities", asked, agent=agent.name, **fields)
    return (await local_dispatcher(agent).dispatch(call)).get()


async def test_every_agent_answers_from_its_record_without_declaring_the_skill() -> None:
    agent = _coder()
    assert (await _ask(agent, "python", "fix", "hidden"))["matched_capabilities"] == ["python", "fix"]
    assert [skill.id for skill in agent.skills] == ["fix", "hidden"]


async def test_a_skill_of_the_reserved_name_is_refused_with_the_way_to_go() -> None:
    with pytest.raises(InvalidSettingError, match="reserved") as caught:
        Agent("a").skill("query_capabilities")(lambda: None)
    assert "@agent.can" in caught.value.remedy


async def test_a_malformed_question_fails_as_invalid_arguments() -> None:
    call = make_call("query_capabilities", {"query_type": "everything"})
    outcome = await local_dispatcher(_coder()).dispatch(call)
    assert isinstance(outcome.error, InvalidParametersError)


async def test_a_judgement_may_be_a_plain_function_that_says_yes_or_no() -> None:
    agent = _coder()

    @agent.can
    def judge(capability: str) -> bool | None:
        return {"python": False, "chess": True}.get(capability)

    reply = await _ask(agent, "python", "chess", "fix")
    assert (reply["matched_capabilities"], reply["missing_capabilities"]) == (["chess", "fix"], ["python"])


async def test_a_judgement_may_be_asynchronous_and_know_who_asks() -> None:
    agent = _coder()

    @agent.can
    async def judge(capability: str, ctx: Context) -> Can:
        await asyncio.sleep(0)
        return Can(price=3, time_s=1.5, confidence=0.75, reason=f"for {ctx.principal.id}")

    reply = await _ask(agent, "python")
    assert reply == {
        "status": "success",
        "match_result": True,
        "matched_capabilities": ["python"],
        "price": 3,
        "time_s": 1.5,
        "confidence": 0.75,
        "reasons": {"python": "for anonymous"},
    }


async def test_details_of_an_action_say_whether_it_is_available_now() -> None:
    agent = _coder()
    agent.can(lambda capability: Can(capability != "fix", reason="the model is down"))
    asked = {"query_type": "action_details", "query_parameters": {"action_name": "fix"}}
    reply = (await local_dispatcher(agent).dispatch(make_call("query_capabilities", asked))).get()
    assert (reply["action"]["name"], reply["available"]) == ("fix", False)


@pytest.mark.parametrize("bad", [ValueError("no"), StopIteration(), SystemExit(1)])
async def test_a_judgement_that_fails_leaves_the_record_to_answer_and_says_so(bad: BaseException) -> None:
    agent = _coder()

    @agent.can
    def judge(capability: str) -> bool:
        raise bad

    assert await _ask(agent, "python") == {
        "status": "success",
        "match_result": True,
        "matched_capabilities": ["python"],
        "live": False,
    }


async def test_a_judgement_that_returns_something_else_counts_as_failed() -> None:
    agent = _coder()
    agent.can(lambda capability: "perhaps")
    assert (await _ask(agent, "python"))["live"] is False


async def test_a_judgement_needs_one_parameter_for_the_capability() -> None:
    with pytest.raises(InvalidSettingError, match="2 parameters"):
        _coder().can(lambda one, two: True)
    with pytest.raises(InvalidSettingError, match="0 parameters"):
        _coder().can(lambda: True)


async def test_an_agent_that_overrides_execute_skill_answers_all_the_same() -> None:
    class Own(Agent):
        async def execute_skill(self, skill_id: str, params: Any) -> Any:
            raise AssertionError(skill_id)

    assert (await _ask(Own("own", topics=["Go"]), "go"))["match_result"] is True
