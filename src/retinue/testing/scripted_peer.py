"""A scripted agent for ``peers=[…]``: its skills return prepared answers.

>>> import asyncio
>>> from retinue import Agent, Context
>>> agent = Agent("judge")
>>> @agent.skill
... async def judge(text: str, ctx: Context) -> str:
...     return "short" if await ctx.call("measure", {"text": text}) < 10 else "long"
>>> ruler = scripted_peer("ruler", measure=in_turn(4, 40))
>>> [asyncio.run(agent.call("judge", {"text": "x"}, peers=[ruler])) for _ in range(2)]
['short', 'long']
>>> ruler.calls
[('measure', {'text': 'x'}), ('measure', {'text': 'x'})]
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.authoring.agent import Agent
from retinue.core.errors import InvalidSettingError
from retinue.core.record import Skill

_ANYTHING = {"type": "object"}


class InTurn:
    """Prepared answers, each for one call; `in_turn` makes one."""

    def __init__(self, answers: Iterable[Any]) -> None:
        self.left = list(answers)

    def take(self) -> Any:
        """The next answer."""
        return self.left.pop(0)


def in_turn(*answers: Any) -> InTurn:
    """A script of one answer for each call, in order.

    >>> in_turn(4, 40).left
    [4, 40]
    """
    return InTurn(answers)


class ScriptedPeer(Agent):
    """An agent without functions; `scripted_peer` makes one. ``calls`` are (skill, arguments), in order."""

    def __init__(self, name: str, script: Mapping[str, Any]) -> None:
        super().__init__(name, version="1.0.0")
        for skill, answer in script.items():
            if isinstance(answer, list):
                raise _ambiguous(name, skill, answer)
        self._script = {
            skill: InTurn(answer.left) if isinstance(answer, InTurn) else answer
            for skill, answer in script.items()
        }
        self.calls: list[tuple[str, Any]] = []
        for skill in script:
            self.declare(Skill(skill, f"Answers {skill} as scripted.", input_schema=_ANYTHING))

    async def execute_skill(self, skill_id: str, params: Any) -> Any:
        """The next answer of the script: a value, the result of a function, or a raised exception."""
        self.calls.append((skill_id, params))
        answer = self._script[skill_id]
        if isinstance(answer, InTurn):
            if not answer.left:
                raise InvalidSettingError(
                    f"scripted_peer {self.name}",
                    f"{skill_id} is called more often than it has answers",
                    remedy="add answers to its in_turn(…)",
                )
            answer = answer.take()
        if callable(answer) and not isinstance(answer, type):
            answer = answer(params)
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


def scripted_peer(name: str, script: Mapping[str, Any] | None = None, /, **skills: Any) -> ScriptedPeer:
    """An agent that offers ``skills``, each with its script.

    A script is a value that every call gets, ``in_turn(…)`` with one value for each call, a function of the
    arguments, or an exception to raise. Give skills whose ids are no names in ``script``. Raises
    InvalidSettingError for a bare list, which could mean one answer or several.
    """
    return ScriptedPeer(name, {**(script or {}), **skills})


def _ambiguous(name: str, skill: str, answer: list[Any]) -> InvalidSettingError:
    shown = ", ".join(repr(reply)[:30] for reply in answer[:3]) + (", …" if len(answer) > 3 else "")
    return InvalidSettingError(
        f"scripted_peer {name}: {skill}",
        "a list may be one answer, or an answer for each call",
        remedy=f"write in_turn({shown}) for one answer a call, or lambda arguments: [{shown}] for a list",
    )
