"""A scripted agent for ``peers=[…]``: its skills return prepared answers.

>>> import asyncio
>>> from retinue import Agent, Context
>>> agent = Agent("judge")
>>> @agent.skill
... async def judge(text: str, ctx: Context) -> str:
...     return "short" if await ctx.call("measure", {"text": text}) < 10 else "long"
>>> ruler = scripted_peer("ruler", measure=[4, 40])
>>> [asyncio.run(agent.call("judge", {"text": "x"}, peers=[ruler])) for _ in range(2)]
['short', 'long']
>>> ruler.calls
[('measure', {'text': 'x'}), ('measure', {'text': 'x'})]
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from retinue.authoring.agent import Agent
from retinue.core.errors import InvalidSettingError
from retinue.core.record import Skill

_ANYTHING = {"type": "object"}


class ScriptedPeer(Agent):
    """An agent without functions; `scripted_peer` makes one. ``calls`` are (skill, arguments), in order."""

    def __init__(self, name: str, script: Mapping[str, Any]) -> None:
        super().__init__(name, version="1.0.0")
        self._script = {
            skill: list(answer) if isinstance(answer, list) else answer for skill, answer in script.items()
        }
        self.calls: list[tuple[str, Any]] = []
        for skill in script:
            self.declare(Skill(skill, f"Answers {skill} as scripted.", input_schema=_ANYTHING))

    async def execute_skill(self, skill_id: str, params: Any) -> Any:
        """The next answer of the script: a value, the result of a function, or a raised exception."""
        self.calls.append((skill_id, params))
        answer = self._script[skill_id]
        if isinstance(answer, list):
            if not answer:
                raise InvalidSettingError(
                    f"scripted_peer {self.name}",
                    f"{skill_id} is called more often than it has answers",
                    remedy="add answers to its list",
                )
            answer = answer.pop(0)
        if callable(answer) and not isinstance(answer, type):
            answer = answer(params)
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


def scripted_peer(name: str, script: Mapping[str, Any] | None = None, /, **skills: Any) -> ScriptedPeer:
    """An agent that offers ``skills``, each with its script.

    A script is a value that every call gets, a list of one value for each call, a function of the arguments,
    or an exception to raise. Give skills whose ids are no names in ``script``.
    """
    return ScriptedPeer(name, {**(script or {}), **skills})
