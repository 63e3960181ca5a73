"""A caller for tests: answers a skill's questions as scripted, and records its reports.

>>> import asyncio
>>> from retinue import Agent, Context
>>> agent = Agent("greeter")
>>> @agent.skill
... async def greet(ctx: Context) -> str:
...     await ctx.progress(0.5, "asking")
...     return f"Hello, {await ctx.elicit('Who are you?', str)}!"
>>> caller = ScriptedCaller(answers=["Ada"])
>>> asyncio.run(agent.call("greet", channel=caller))
'Hello, Ada!'
>>> caller.questions, caller.progress_reports
(['Who are you?'], [(0.5, 'asking')])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from retinue.core.call import TextPiece
from retinue.core.errors import CannotAskError, InputRefusedError, InputRequiredError
from retinue.mesh.channel import Capability, LogLevel, Root
from retinue.mesh.schema.checks import compile_schema

DECLINED: Final = object()
"""An answer of a person who declines the question."""

Answers = Sequence[Any] | Mapping[str, Any] | Callable[[str, Mapping[str, Any]], Any]
Samples = Sequence[str] | Callable[[str], str]


class ScriptedCaller:
    """A channel for ``agent.call(…, channel=…)``: a person, a model and folders, each if it is scripted.

    ``answers`` are those of the person: a list in the order of the questions, a mapping from a part of the
    question to its answer, or a function of the question and its schema; DECLINED declines. ``samples`` are
    the model's: a list, or a function of the prompt. Without a script the caller cannot be asked, as a
    client without that capability. An answer that does not fit the question is refused, as everywhere.
    ``unscripted`` holds questions and prompts for which no answer was left: a skill may catch their error.
    """

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        samples: Samples | None = None,
        roots: Iterable[Root | str] | None = None,
    ) -> None:
        self._answers = answers if callable(answers) or isinstance(answers, Mapping) else _listed(answers)
        self._samples = samples if callable(samples) else _listed(samples)
        self._roots = None if roots is None else tuple(r if isinstance(r, Root) else Root(r) for r in roots)
        self.questions: list[str] = []
        self.unscripted: list[str] = []
        self.prompts: list[str] = []
        self.progress_reports: list[tuple[float | None, str]] = []
        self.pieces: list[TextPiece] = []
        self.log_lines: list[tuple[LogLevel, str, Mapping[str, Any] | None]] = []

    @property
    def capabilities(self) -> frozenset[Capability]:
        kinds: set[Capability] = {"progress", "log"}
        scripts: tuple[tuple[Capability, Any], ...] = (
            ("elicitation", self._answers),
            ("sampling", self._samples),
            ("roots", self._roots),
        )
        return frozenset(kinds | {name for name, script in scripts if script is not None})

    @property
    def is_sessionless(self) -> bool:
        """False: questions are answered while the call runs."""
        return False

    @property
    def unused(self) -> tuple[Any, ...]:
        """The unused entries of the lists of answers and samples."""
        return tuple(
            left for script in (self._answers, self._samples) if isinstance(script, list) for left in script
        )

    async def progress(self, fraction: float | None, message: str = "") -> None:
        self.progress_reports.append((fraction, message))

    async def stream_text(self, piece: TextPiece) -> None:
        self.pieces.append(piece)

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        self.log_lines.append((level, message, data))

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        if self._answers is None:
            raise CannotAskError("elicitation")
        self.questions.append(message)
        answer = self._find_answer(message, schema)
        if answer is DECLINED:
            raise InputRefusedError(f"the question was answered with decline: {message}")
        if problems := compile_schema(dict(schema), "question").problems(answer, schema):
            raise InputRefusedError(f"the answer does not fit the question: {problems[0].message}")
        return answer

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        if self._samples is None:
            raise CannotAskError("sampling")
        self.prompts.append(prompt)
        return (
            self._samples(prompt) if callable(self._samples) else self._take(self._samples, "samples", prompt)
        )

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        if self._roots is None:
            raise CannotAskError("roots")
        return self._roots

    def _find_answer(self, message: str, schema: Mapping[str, Any]) -> Any:
        answers = self._answers
        if callable(answers):
            return answers(message, schema)
        if isinstance(answers, Mapping):
            matches = [answer for part, answer in answers.items() if part in message]
            return matches[0] if matches else self._take([], "answers", message)
        return self._take(answers, "answers", message)

    def _take(self, script: list[Any] | None, option: str, asked: str) -> Any:
        if not script:
            self.unscripted.append(asked)
            raise InputRequiredError(
                f"nothing is scripted for: {asked}", remedy=f"add it to {option}= of ScriptedCaller"
            )
        return script.pop(0)


def _listed(script: Iterable[Any] | None) -> list[Any] | None:
    return script if script is None else [script] if isinstance(script, str) else list(script)
