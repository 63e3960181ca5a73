"""Errors of execution: skills that returned no result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from retinue.core.durations import render_duration
from retinue.core.error_kinds.base import (
    EXECUTION_FAILED,
    Kind,
    Problem,
    RetinueError,
    join_problems,
    read_problems,
)


class ExecutionError(RetinueError):
    """The skill was called and did not return a result."""

    type = "execution_error"


MAX_DETAIL_CHARACTERS = 2_000
"""The limit for the further lines of an exception's text."""


class ExecutionFailedError(ExecutionError):
    """The skill raised; the message is one line of what it raised, its class name if empty.

    ``data`` has the class of the exception, the skill, and the further lines of its text.
    """

    # P-24

    def __init__(
        self, message: str, *, remedy: str = "", exception: str = "", detail: str = "", skill: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.exception = exception
        self.detail = detail
        self.skill = skill

    @classmethod
    def from_exception(cls, error: BaseException, skill: str = "") -> ExecutionFailedError:
        """The failure of ``skill`` by what it raised."""
        if isinstance(error, RetinueError):
            return cls(error.message.removeprefix(EXECUTION_FAILED))
        name = type(error).__name__
        first, *further = str(error).strip().splitlines() or [name]
        if not isinstance(error, Exception) and first != name:
            first = f"{name}: {first}"  # "3" says nothing, "SystemExit: 3" does
        detail = "\n".join(line.rstrip() for line in further)
        return cls(first, exception=name, detail=_shorten(detail), skill=skill)

    @property
    def data(self) -> dict[str, Any]:
        facts = {"exception": self.exception, "detail": self.detail, "skill": self.skill}
        return {name: fact for name, fact in facts.items() if fact}


class IncapableError(ExecutionFailedError):
    """The agent lists the skill, but nothing runs it: an action of a character without function and model."""

    type = "incapable"
    kind = Kind(retryable=False, counts_against_health=False, on_error="refused")


def _shorten(text: str) -> str:
    left = len(text) - MAX_DETAIL_CHARACTERS
    return text if left <= 0 else f"{text[:MAX_DETAIL_CHARACTERS]} … ({left:,} characters more)"


class OutputInvalidError(ExecutionError):
    """A result does not fit the skill's output schema, or is not a JSON value; a problem may be a text."""

    # P-13

    type = "output_validation_error"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")

    def __init__(self, skill: str, problems: Sequence[Problem | str], *, answer: Any = None) -> None:
        """``answer`` is what a model said instead, which is kept."""
        problems = read_problems(problems)
        super().__init__(
            f"the result of {skill} breaks its output schema: {join_problems(problems)}",
            remedy="fix the skill or its output schema",
        )
        self.problems = tuple(problems)
        self.answer = answer

    @classmethod
    def not_json(cls, skill: str, path: str, shape: str) -> OutputInvalidError:
        """The error of a result that is not JSON at ``path``; ``shape`` is what stands there."""
        problem = Problem(path, f"not a JSON value{f' at {path}' if path else ''}: {shape}")
        error = cls(skill, [problem])
        error.message = f"the result of {skill} is {problem.message}"
        error.args = (error.message,)
        error.remedy = "return JSON values, dataclasses, pydantic models, or types that pydantic encodes"
        return error

    @classmethod
    def not_announced(cls, skill: str) -> OutputInvalidError:
        """The error of content parts where the annotation of the function announces another value."""
        error = cls(skill, [Problem("", "content parts that its annotation does not announce")])
        error.message = f"the result of {skill} has {error.problems[0].message}"
        error.args = (error.message,)
        error.remedy = "annotate the function: -> Part, -> list[Part | str], or -> Answer"
        return error

    @property
    def data(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"errors": [p.as_json() for p in self.problems]}
        return facts if self.answer is None else {**facts, "answer": self.answer}


class EmptyOutputError(ExecutionError):
    """The skill succeeded without a result, where its caller requires one."""

    type = "empty_output"

    def __init__(self, skill: str) -> None:
        super().__init__(
            f"{skill} returned nothing", remedy="ask for a result, or set allow_empty: true on the step"
        )


class CallTimedOutError(ExecutionError):
    """A time limit ran out; names the layer and the setting of the limit."""

    type = "timeout"
    kind = Kind(retryable=True, counts_against_health=False, on_error="timeout")

    def __init__(
        self, what: str, timeout_s: float, *, layer: str = "skill", setting: str = "timeout_s"
    ) -> None:
        super().__init__(
            f"{what} did not answer within {render_duration(timeout_s)} ({layer})", remedy=f"raise {setting}"
        )
        self.timeout_s = timeout_s
        self.layer = layer
        self.setting = setting

    @property
    def data(self) -> dict[str, Any]:
        return {"timeout_s": self.timeout_s, "layer": self.layer, "setting": self.setting}


class CallCancelledError(ExecutionError):
    """The caller cancelled the call, or somebody cancelled the run."""

    type = "cancelled"
    kind = Kind(retryable=False, counts_against_health=False, on_error="cancelled")

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was cancelled")


AWAY_RETRY_S = 2.0
"""After this time a call to an agent that is away is worth another try; a restart takes about that."""

HUB = "hub"
"""The name under which calls of a command or an agent to its hub fail."""


CLOCKS_AGREE_S = 5.0
"""Two clocks agree that differ by less: tokens allow for more."""


class AgentUnreachableError(ExecutionError):
    """The connection failed or broke, or the agent is away; ``sent`` = it may have run the call.

    ``waited_s`` = how long the caller waited for it in vain.
    """

    type = "agent_unreachable"
    kind = Kind(retryable=True, counts_against_health=True, on_error="unreachable")

    def __init__(
        self, agent: str, url: str = "", cause: str = "it does not answer", *, sent: bool = False
    ) -> None:
        place = f" at {url}" if url else ""
        super().__init__(
            f"{'the hub' if agent == HUB else f'agent {agent}'}{place} is unreachable: {cause}",
            remedy="start it, or see its state: retinue agents",
        )
        self.agent = agent
        self.url = url
        self.cause = cause
        self.sent = sent
        self.waited_s = 0.0
        self.retry_after_s: float | None = None
        self.is_token_stale = False

    @classmethod
    def away(cls, agent: str, url: str | None = None, away_s: float | None = None) -> Self:
        """An agent that is known and not listed now; ``away_s`` = for how long, None = unknown."""
        error = cls(agent, url or "", "not listed")
        since = f"since {render_duration(away_s)}" if away_s is not None else "and not listed at the moment"
        last = f"; it was at {url}" if url else ""
        error.message = f"agent {agent} is away {since}{last}"
        error.args = (error.message,)
        error.remedy = f"start {agent} again; see: retinue agents"
        error.retry_after_s = AWAY_RETRY_S
        return error

    @classmethod
    def not_started(cls, agent: str, reason: str, remedy: str) -> Self:
        """An agent that this machine cannot start, for want of a key or a program."""
        error = cls(agent, "", reason)
        error.message = f"agent {agent} is not started: {reason}"
        error.args = (error.message,)
        error.remedy = remedy
        return error

    @classmethod
    def clocks_differ(cls, agent: str, url: str, ahead_s: float) -> Self:
        """An agent that accepts no token of this machine, because its clock is ``ahead_s`` ahead of ours.

        Where the clocks agree now, the token was made before one of them was set: the next one is accepted.
        """
        side = "ahead of" if ahead_s > 0 else "behind"
        difference = render_duration(abs(ahead_s))
        error = cls(agent, url, f"its clock is {difference} {side} this machine's, so it accepts no token")
        error.remedy = "synchronise the clocks of both machines, for example with NTP"
        error.is_token_stale = abs(ahead_s) < CLOCKS_AGREE_S
        return error

    @classmethod
    def of_other_mesh(cls, agent: str, url: str) -> Self:
        """A process of another mesh answers at the url, such as one that got the port of an agent that ended.

        It has not run the call.
        """
        error = cls(agent, url, "a process of another mesh answers there")
        error.remedy = (
            f"start {agent} again; if it belongs to this mesh, join its machine: retinue token new --join"
        )
        return error

    @property
    def data(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"agent": self.agent, "sent": self.sent}
        if self.retry_after_s is not None:
            facts["retry_after_s"] = self.retry_after_s
        return facts | ({"waited_s": self.waited_s} if self.waited_s else {})


class RemoteFaultError(ExecutionError):
    """An agent's own error; code, message and data pass through a hub unchanged."""

    type = "remote_error"

    def __init__(self, agent: str, code: int, message: str, fault_data: Any = None) -> None:
        remedy = fault_data.get("remedy") if isinstance(fault_data, Mapping) else None
        super().__init__(message, remedy=remedy if isinstance(remedy, str) else "")
        self.agent = agent
        self.code = code
        self.fault_data = fault_data
        # the same failure has the same type in this process and over the wire
        self.type = self.remote_type

    @property
    def data(self) -> dict[str, Any]:
        if not isinstance(self.fault_data, Mapping):
            return {}
        return {key: fact for key, fact in self.fault_data.items() if key not in ("type", "remedy")}

    @property
    def remote_type(self) -> str:
        """The remote ``data.type`` where there is one, otherwise the type of this class."""
        # specification 2, doubt 1
        if isinstance(self.fault_data, dict) and isinstance(self.fault_data.get("type"), str):
            return str(self.fault_data["type"])
        return RemoteFaultError.type


ModelReason = Literal[
    "refused",
    "empty",
    "malformed",
    "too_long",
    "login",
    "quota",
    "not_found",
    "rejected",
    "unavailable",
    "program",
    "no_tools",
]
"""Why a model gave no answer.

It or a content filter refused; it said nothing; its answer cannot be read; the prompt is too long; the key,
the credit, the model or the request was refused; the provider is unavailable; the command-line agent failed,
or it takes no tools.
"""


class ModelError(ExecutionError):
    """A language model gave no usable answer; ``reason`` says why.

    ``is_lost`` = the provider may have begun to answer, so that the usage is unknown if nothing told it.
    """

    type = "model_error"
    is_lost = False

    def __init__(
        self,
        agent: str,
        reason: ModelReason,
        problem: str,
        *,
        remedy: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"the model of {agent}: {problem}", remedy=remedy or _MODEL_REMEDIES.get(reason, ""))
        self.agent = agent
        self.reason = reason
        self.retry_after_s = retry_after_s
        is_retryable = reason in ("empty", "malformed", "unavailable")
        self.kind = Kind(retryable=is_retryable, counts_against_health=False, on_error="failed")

    @classmethod
    def refused(cls, agent: str, said: str = "") -> Self:
        """A refusal, by the model or by a content filter of its provider."""
        return cls(agent, "refused", "it refused the request" + (f": {said}" if said.strip() else ""))

    @classmethod
    def empty(cls, agent: str) -> Self:
        """An answer without text."""
        return cls(agent, "empty", "its answer is empty")

    @classmethod
    def without_tools(cls, agent: str) -> Self:
        """A conversation with tools for a model behind a command-line agent."""
        return cls(agent, "no_tools", "it runs as a command-line agent, which cannot take tools")

    @classmethod
    def too_large(cls, agent: str, limit_bytes: int) -> Self:
        """An answer that was not read to its end."""
        return cls(agent, "rejected", f"its answer is larger than {limit_bytes:,} bytes")

    @property
    def data(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"agent": self.agent, "reason": self.reason}
        return facts if self.retry_after_s is None else {**facts, "retry_after_s": self.retry_after_s}


_MODEL_REMEDIES: Mapping[ModelReason, str] = {
    "refused": "word the request differently, or call another agent",
    "empty": "try again, or word the request differently",
    "malformed": "try again, or call another agent",
    "rejected": "correct the request, or the settings of the agent: retinue doctor",
    "unavailable": "try again later, or call another agent",
    "no_tools": 'name a model agent with an API (backend = "api" and a key): retinue doctor',
    "program": "run the command by hand to see what it lacks; see: retinue doctor",
}


class LimitedError(ExecutionError):
    """A model that calls skills reached one of its limits before its work was done.

    ``limit`` is turns, calls, tokens, dollars, time or repeats, and ``value`` what it was set to. ``answer``
    is the last answer of the model, ``spent`` what was used of each limit. ``run`` is the id of the run,
    unless it is part of another one. The remedy names the command that goes on.
    """

    type = "limited"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")

    def __init__(
        self,
        limit: str,
        value: float | None,
        answer: Any,
        spent: Mapping[str, Any],
        run: str | None = None,
    ) -> None:
        what = "the same call was repeated" if limit == "repeats" else f"the limit of {limit} is reached"
        size = "" if value is None else f" ({value:,.12g})"
        super().__init__(f"{what}{size}; the answer is the last one of the model")
        self.limit = limit
        self.value = value
        self.answer = answer
        self.spent = dict(spent)
        self.run = run
        self.remedy = self._way_on()

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> LimitedError:
        """The error with this ``data``."""
        return cls(data["limit"], data.get("value"), data.get("answer"), data["spent"], data.get("run"))

    @property
    def data(self) -> dict[str, Any]:
        facts = {"limit": self.limit, "value": self.value, "answer": self.answer, "spent": self.spent}
        return facts if self.run is None else {**facts, "run": self.run}

    def _way_on(self) -> str:
        if self.limit == "repeats":
            return "say in the instructions what to do when a call does not help"
        if self.run is None:
            return f"raise limits.{self.limit}"
        return f"go on with more: retinue resume {self.run} --limit {self.limit}=N"


def is_callers_time(error: RetinueError | None) -> bool:
    """Whether a call ended because its caller's time ran out, as noticed here or reported by the agent."""
    if isinstance(error, RemoteFaultError) and error.remote_type == CallTimedOutError.type:
        return bool(error.fault_data.get("layer") == "caller")
    return isinstance(error, CallTimedOutError) and error.layer == "caller"


class InputRequiredError(ExecutionError):
    """The skill needs an answer from a person, and this endpoint cannot ask for one."""

    type = "input_required"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")


class CannotAskError(InputRequiredError):
    """The caller does not support this kind of question; ``capability`` is the missing one."""

    type = "cannot_ask"

    def __init__(self, capability: str) -> None:
        super().__init__(
            f"the caller does not support {capability}",
            remedy=f"use a client that declares the capability {capability}"
            + (", or call it with retinue call in a terminal" if capability == "elicitation" else ""),
        )
        self.capability = capability

    @property
    def data(self) -> dict[str, Any]:
        return {"capability": self.capability}


class InputRefusedError(InputRequiredError):
    """The person declined, closed the question, or gave an answer that does not fit the requested schema.

    ``answer`` is an answer that does not fit, which is passed on to the agent that asked; else None.
    """

    type = "input_refused"

    def __init__(self, message: str, *, remedy: str = "", answer: Any = None) -> None:
        super().__init__(message, remedy=remedy)
        self.answer = answer
