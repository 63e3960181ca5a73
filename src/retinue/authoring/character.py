"""Makes an agent from a character file: bound functions run its actions, or a model answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.authoring.signatures import read_signature
from retinue.cards.character_file import Action, Character
from retinue.core.call import Answer
from retinue.core.errors import IncapableError, InvalidSettingError
from retinue.mesh.asking.query import Can, fold

AnswerAs = Callable[[Context, str, str, Any], Awaitable[Answer]]
"""Answers as the character: its instructions, the task, and data that the task is about."""

CAN = "can"
"""The function of a bound module that is the agent's judgement, as under ``@agent.can``."""


class CharacterAgent(Agent):
    """The agent of a character; ``functions`` is the module with the functions of its actions.

    A function belongs to the action of its name, whatever the case. Actions without one are answered by the
    character's model once `answer_with` was called, and refused until then. Raises InvalidSettingError.
    """

    def __init__(self, character: Character, functions: ModuleType | None = None, file: str = "") -> None:
        super().__init__(
            character.name,
            version=character.version,
            title=character.title,
            description=character.description,
            topics=character.topics,
        )
        self.character = character
        self._file = file
        self._answer_as: AnswerAs | None = None
        self._unbound: dict[str, Action] = {}
        bound = _list_functions(functions)
        for action in character.actions:
            function = bound.pop(fold(action.name), None)
            if function is None:
                self._unbound[action.name] = action
            self._add(action, function or self._make_refusal(action))
        self._check_expose()
        judgement = bound.pop(CAN, None)
        if judgement is not None:
            self.can(judgement)
        elif self._unbound:
            self.can(self._judge)

    @property
    def needs_model(self) -> bool:
        """Whether actions are left for the character's model."""
        return bool(self._unbound) and self.character.model is not None

    def answer_with(self, answer_as: AnswerAs, timeout_s: float) -> None:
        """Answer the actions without functions by a model, which takes at most ``timeout_s`` for each."""
        self._answer_as = answer_as
        answered = []
        for skill in self.skills:
            if skill.id not in self._unbound:
                continue
            function = self._make_answer(self._unbound[skill.id], answer_as)
            signature = read_signature(function, skill.id)
            self._functions[skill.id] = (function, signature)
            schema = signature.input_schema
            answered.append(replace(skill, input_schema=schema, timeout_s=timeout_s, channel=True))
        self.replace_skills(answered)

    def _add(self, action: Action, function: Callable[..., Any]) -> None:
        self.skill(
            action.name,
            description=action.description or None,
            similes=action.similes,
            examples=action.examples,
            expose=action.name in self.character.expose,
        )(function)

    def _make_refusal(self, action: Action) -> Callable[..., Any]:
        """The function of an action that nothing runs: it takes any data, which are not what it lacks."""

        async def refuse(**data: Any) -> Answer:
            raise IncapableError(f"{action.name} of {self.name} is {_NOT_CALLABLE}", remedy=self._remedy)

        refuse.__doc__ = action.description
        return refuse

    def _make_answer(self, action: Action, answer_as: AnswerAs) -> Callable[..., Any]:
        async def act(
            prompt: Annotated[str, Field(min_length=1, description="What is to be done, in words")],
            ctx: Context,
            context: Annotated[Any, Field(description="Data that the request is about")] = None,
        ) -> Answer:
            task = f"Do what your action {action.name} means ({action.description}).\n\nThe request: {prompt}"
            return await answer_as(ctx, self.character.persona, task, context)

        act.__doc__ = action.description
        return act

    @property
    def _remedy(self) -> str:
        file = self._file or f"{self.name}.json"
        return (
            f"write a function of the action's name in {file.rpartition('.')[0]}.py beside {file}, "
            'or name a model in it: "retinue": {"model": "claude"}'
        )

    def _judge(self, wanted: str) -> Can | None:
        """An action that nothing runs is no capability now."""
        if self._answer_as is not None:
            return None
        asked = fold(wanted)
        for action in self._unbound.values():
            if asked in map(fold, (action.name, *action.similes)):
                return Can(False, reason=_NOT_CALLABLE)
        return None

    def _check_expose(self) -> None:
        for name in self.character.expose:
            if name not in self._skills:
                raise InvalidSettingError(
                    f"{self._file}: retinue.expose",
                    f"there is no action {name!r}",
                    remedy=f"there are: {', '.join(self._skills) or 'none'}",
                )


_NOT_CALLABLE = "not callable: no function is bound to it, and no model answers it"


def _list_functions(module: ModuleType | None) -> dict[str, Callable[..., Any]]:
    """The public functions that a module defines itself, by folded name."""
    if module is None:
        return {}
    return {
        fold(name): value
        for name, value in vars(module).items()
        if callable(value)
        and not isinstance(value, type)
        and not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    }
