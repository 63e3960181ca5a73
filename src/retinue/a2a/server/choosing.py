"""Finds the skill of messages that name none, at an agent that has skills for plain texts: a hub.

Where no skill is sure, the task asks its client with the list of the skills. The next message of the task,
or of its context, names one; a further text without a name is searched for again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from retinue.a2a.codec.calls import Named, make_arguments, read_named
from retinue.a2a.codec.faults import A2aError
from retinue.a2a.codec.requests import IncomingMessage
from retinue.a2a.codec.tasks import FAILED
from retinue.a2a.server.task_run import TaskRun
from retinue.a2a.server.task_table import MAX_ASKING, MAX_ASKING_OF_A_CALLER, Sender
from retinue.cards.skill_signature import render_signature
from retinue.core.call import Principal
from retinue.parts.text_skills import SkillOption, TextSkills

SKILLS_KEY = "skills"
"""Key in the metadata of the question: id, agent, signature and description of each skill in the list."""

_MAX_DESCRIPTION = 160


@dataclass(frozen=True, slots=True)
class ChosenCall:
    """The skill of a call and its arguments; ``is_plain``: the client sent a text without a skill.

    ``agent`` offers the skill that was chosen: another agent may have one of the same id that does something
    else. None = the message named the skill, and its receiver chooses the agent.
    """

    skill: str
    arguments: Any
    is_plain: bool = False
    agent: str | None = None


@dataclass(slots=True)
class _Waiting:
    run: TaskRun
    options: Sequence[SkillOption] = ()


class SkillChoice:
    """Finds the skills of messages; tasks whose client is asked wait here, the oldest first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    async def choose(self, named: Named, skills: TextSkills, caller: Principal) -> ChosenCall | None:
        """The call that a message without a skill means; None where its client must be asked."""
        if named.text is None or named.arguments is not None or named.files:
            return None
        option = await skills.choose(named.text, caller)
        return None if option is None else _call_of(option, named)

    def find_waiting(self, message: IncomingMessage, caller: Sender) -> TaskRun | None:
        """The task in the context of a message that waits for this choice; A2aError for a malformed one."""
        if message.task_id is not None or message.context_id is None:
            return None
        for waiting in reversed(self._waiting.values()):
            run = waiting.run
            is_same = (run.agent, run.owner) == (caller.agent or "", caller.owner)
            if is_same and run.task["contextId"] == message.context_id and run.is_settled:
                answer = read_named(message, {})
                is_choice = answer.skill is not None or _pick(answer.text, waiting.options) is not None
                return run if is_choice else None
        return None

    async def ask(self, run: TaskRun, first: Named, skills: TextSkills, caller: Principal) -> ChosenCall:
        """Ask the client of a task until its skill is known; raises InputRequiredError and StateError."""
        self._end_oldest(run.owner)
        waiting = self._waiting[run.id] = _Waiting(run)
        named, problem = first, ""
        try:
            while True:
                waiting.options = await skills.list_options(named.text or "", caller)
                metadata = {SKILLS_KEY: [_render_row(option) for option in waiting.options]}
                message = await run.ask_for_message(_render_question(waiting.options, problem), metadata)
                try:
                    answer = read_named(message, {})
                    call = await self._read_choice(answer, named, waiting.options, skills, caller)
                except A2aError as error:
                    problem = error.message
                    continue
                if call is not None:
                    return call
                problem = ""
                if answer.text is not None and answer.text.strip():
                    # other words for the request
                    named = answer
        finally:
            del self._waiting[run.id]

    async def _read_choice(
        self,
        answer: Named,
        named: Named,
        options: Sequence[SkillOption],
        skills: TextSkills,
        caller: Principal,
    ) -> ChosenCall | None:
        """The call that an answer means, None where it chooses nothing; raises A2aError."""
        if answer.skill is not None:
            option = await skills.find(answer.skill, caller)
            if option is None:
                raise _unknown(answer.skill)
            is_bare = answer.arguments is None and answer.text is None and not answer.files
            return _call_of(option, named if is_bare else answer)
        picked = _pick(answer.text, options)
        if picked is None and answer.text is not None:
            word = answer.text.strip()
            picked = await skills.find(word, caller) if word and len(word.split()) == 1 else None
        if picked is not None:
            return _call_of(picked, replace(answer, text=None) if answer.arguments is not None else named)
        return await self.choose(answer, skills, caller)

    def _end_oldest(self, owner: str) -> None:
        """Make room: a task that waits holds no call, but memory."""
        own = [waiting.run for waiting in self._waiting.values() if waiting.run.owner == owner]
        if len(own) >= MAX_ASKING_OF_A_CALLER:
            _give_up(own[0])
        elif len(self._waiting) >= MAX_ASKING:
            _give_up(next(iter(self._waiting.values())).run)


def _give_up(run: TaskRun) -> None:
    run.end(FAILED, "too many tasks wait for the choice of a skill; send the message again and name one")
    if run.runner is not None:
        run.runner.cancel()


def _call_of(option: SkillOption, named: Named) -> ChosenCall:
    arguments = make_arguments(named, option.skill)
    return ChosenCall(option.skill.id, arguments, is_plain=named.arguments is None, agent=option.agent)


def _pick(text: str | None, options: Sequence[SkillOption]) -> SkillOption | None:
    """The option that a text names by its number or its id."""
    word = (text or "").strip().strip("`\"'.")
    if word.isascii() and word.isdecimal() and 0 < int(word[:6]) <= len(options):
        return options[int(word[:6]) - 1]
    wanted = word.casefold()
    return next((option for option in options if option.skill.id.casefold() == wanted), None)


def _unknown(skill: str) -> A2aError:
    return A2aError(-32602, "UNKNOWN_SKILL", f"Unknown skill: {skill[:100]}")


def _render_question(options: Sequence[SkillOption], problem: str) -> str:
    lines = [f"{problem}." if problem else "No skill is certain to be meant."]
    lines.append("Answer with the number or the id of one of these skills, or say it in other words:")
    lines += [
        f"{number}. {option.skill.id} of {option.agent}{_described(option)}"
        for number, option in enumerate(options, 1)
    ]
    lines.append('Arguments go into a data part {"skill": …, "arguments": {…}}.')
    return "\n".join(lines)


def _described(option: SkillOption) -> str:
    description = " ".join(option.skill.description.split())
    if len(description) > _MAX_DESCRIPTION:
        description = f"{description[: _MAX_DESCRIPTION - 1]}…"
    return f": {description}" if description else ""


def _render_row(option: SkillOption) -> dict[str, Any]:
    skill = option.skill
    return {
        "skill": skill.id,
        "agent": option.agent,
        "call": render_signature(skill.id, skill.input_schema),
        "description": skill.description,
    }
