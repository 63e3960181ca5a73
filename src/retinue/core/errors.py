"""The error tree: every failure of Retinue, each with the kind that decides how it is handled.

RetinueError
├── RequestError              the caller sent something unusable
│   ├── ParseError            not JSON, or nested too deeply
│   ├── InvalidRequestError   JSON, but not a request of this endpoint
│   ├── TooLargeError         a limit on size or count was exceeded
│   ├── UnsupportedMediaTypeError  a body that this endpoint does not read
│   ├── InvalidParametersError  arguments do not fit the input schema
│   ├── InvalidSettingError   a setting, flag or hand-written file is wrong
│   ├── SchemaRefusedError    a skill's schema is unsafe or not a JSON Schema
│   ├── DefinitionError       a workflow definition is wrong
│   ├── KeyConflictError      an idempotency key was used again for another request
│   └── NotCallableError      a plain trait was called
├── LookupFailedError         a name matches nothing, or several things
│   ├── UnknownSkillError     this agent has no such skill
│   │   └── SkillNotOfferedError  no agent in the directory offers it
│   ├── UnknownAgentError
│   ├── UnknownRunError
│   ├── UnknownStepError      a run or definition has no such step
│   ├── UnknownWorkflowError  no workflow of this name
│   ├── UnknownTokenError     no token of this id
│   ├── UnknownRoleError      there is no such role
│   ├── RoleNotOfferedError   no agent has the role
│   │   └── NoModelError      … and so nobody can take the request
│   ├── NobodyWillingError    who was asked first said no, or nothing
│   ├── UnknownResourceError  nothing to read under this uri
│   ├── UnknownPromptError
│   ├── AmbiguousNameError
│   └── VersionConflictError  offered, but in no version of the requested range
├── AccessError
│   ├── NotAuthenticatedError
│   └── NotAllowedError
│       └── InsufficientScopeError  a valid token without the required scope
├── GuardError                the trace guard rejected the call
│   ├── CallTooDeepError      depth over the limit, or a hub loop
│   ├── BudgetSpentError      the trace has no calls or seconds left, or a model agent no money
│   └── CircuitOpenError      the breaker of this trace or agent is open
├── BusyError                 a rate or concurrency limit; try later
├── ExecutionError            the skill was called and did not return a result
│   ├── ExecutionFailedError  it raised
│   ├── OutputInvalidError    its result does not fit the output schema, or is not JSON
│   ├── EmptyOutputError      it returned nothing where a result is required
│   ├── CallTimedOutError
│   ├── CallCancelledError
│   ├── AgentUnreachableError
│   ├── RemoteFaultError      the agent answered with an error
│   ├── ModelError            a language model gave no usable answer
│   ├── InputRequiredError    it needs an answer from a person
│   │   ├── CannotAskError    the caller does not support this kind of question
│   │   └── InputRefusedError  the person declined, or answered something that does not fit
│   ├── ExpressionError       a workflow expression failed at run time
│   └── StepFailedError       a step of a workflow failed, and so the run
├── RunConflictError          a run id was used again with other input
├── RegistryError             an OCI registry or layout
│   ├── RegistryUnreachableError
│   ├── RegistryRefusedError  the registry answered with an error
│   │   ├── RegistryLoginError  it requires other credentials
│   │   └── RegistryBusyError  it answered 429 for longer than we may wait
│   ├── ReferenceNotFoundError
│   ├── InvalidReferenceError
│   ├── DigestMismatchError
│   ├── MalformedArtifactError  a manifest or card that cannot be read
│   │   ├── ContentMissingError  a manifest names content that does not exist
│   │   └── CardSignatureError  a card without a valid signature where one is required
│   ├── RepositoryTakenError  the repository holds a card of another name
│   └── TagTakenError         the tag holds another major version of the agent
└── StateError                the state folder or this machine
    ├── StateDamagedError
    ├── StorageFullError
    ├── HubRunningError       a hub already owns this state
    ├── PortInUseError
    └── ChildFailedError      a supervised process did not become ready
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from retinue.core.durations import render_duration

OnErrorClass = Literal["request", "refused", "failed", "timeout", "cancelled", "unreachable"]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a failure is handled by retries, by health, and by a workflow's ``on_error``."""

    retryable: bool
    counts_against_health: bool
    on_error: OnErrorClass


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem that a schema check found: a dotted ``path`` ("" = the whole value) and a message.

    ``hint`` is what was probably meant; it is told to people and models, not in the message itself.
    """

    path: str
    message: str
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        found = {"path": self.path, "message": self.message}
        return {**found, "hint": self.hint} if self.hint else found


def join_problems(problems: Sequence[Problem]) -> str:
    """All problems as one line, in their order (SPEC 7, P-23)."""
    return "; ".join(problem.message for problem in problems)


_REQUEST = Kind(retryable=False, counts_against_health=False, on_error="request")
_REFUSED = Kind(retryable=False, counts_against_health=False, on_error="refused")
_FAILED = Kind(retryable=True, counts_against_health=False, on_error="failed")

EXECUTION_FAILED = "Execution failed: "
"""What stands before the message of a failed skill on the wire (P-24)."""


class RetinueError(Exception):
    """Any failure of Retinue; ``str(error)`` is one line that says what happened.

    ``type`` is the stable machine-readable name (``data.type`` on the wire), ``remedy`` says what to do
    about it, ``data`` holds further facts.
    """

    type: str = "error"
    kind: Kind = _FAILED

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @property
    def data(self) -> dict[str, Any]:
        """Facts that are sent with the message; JSON values only."""
        return {}


class RequestError(RetinueError):
    """The caller sent something unusable."""

    type = "invalid_request"
    kind = _REQUEST


class ParseError(RequestError):
    """Bytes that are not JSON, or JSON that is nested too deeply."""

    type = "parse_error"


class InvalidRequestError(RequestError):
    """JSON that is not a request of this endpoint."""


class TooLargeError(RequestError):
    """A limit on size or count was exceeded."""

    type = "too_large"

    def __init__(self, what: str, limit: int, unit: str = "bytes", *, remedy: str = "") -> None:
        super().__init__(
            f"{what} is over the limit of {limit:,} {unit}", remedy=remedy or f"send at most {limit:,} {unit}"
        )
        self.limit = limit
        self.unit = unit

    @property
    def data(self) -> dict[str, Any]:
        return {"limit": self.limit, "unit": self.unit}


class UnsupportedMediaTypeError(RequestError):
    """A body of a media type that this endpoint does not read."""

    type = "unsupported_media_type"


class InvalidParametersError(RequestError):
    """Arguments do not fit the skill's input schema; the message names every problem (P-12, P-23)."""

    type = "validation_error"

    def __init__(self, problems: Sequence[Problem]) -> None:
        # a hint says more than the general remedy
        remedy = "" if any(one.hint for one in problems) else "send what the skill's input schema asks for"
        super().__init__(join_problems(problems), remedy=remedy)
        self.problems = tuple(problems)

    @property
    def data(self) -> dict[str, Any]:
        return {"jsonrpc_code": -32602, "errors": [p.as_json() for p in self.problems]}


class InvalidSettingError(RequestError):
    """A setting, flag or hand-written file is wrong; names the field, the problem and the remedy."""

    type = "invalid_setting"

    def __init__(self, field: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"{field}: {problem}", remedy=remedy)
        self.field = field

    @property
    def data(self) -> dict[str, Any]:
        return {"field": self.field}


class SchemaRefusedError(RequestError):
    """A skill's schema is not a JSON Schema, refers outside itself, or would take exponential time."""

    type = "schema_refused"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"schema of {where} refused: {problem}", remedy="simplify the schema")
        self.where = where


class DefinitionError(RequestError):
    """A workflow definition is wrong; ``line`` is 1-based, 0 when unknown."""

    type = "invalid_definition"

    def __init__(self, problem: str, *, source: str = "definition", line: int = 0, remedy: str) -> None:
        at = f"{source}:{line}" if line else source
        super().__init__(f"{at}: {problem}", remedy=remedy)
        self.source = source
        self.line = line

    @property
    def data(self) -> dict[str, Any]:
        return {"source": self.source, "line": self.line}


class KeyConflictError(RequestError):
    """An idempotency key was used again with other arguments."""

    type = "key_conflict"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"Idempotency key {key} was used with other arguments", remedy="choose a new key, or none"
        )
        self.key = key


class NotCallableError(RequestError):
    """A plain trait was called as if it were a skill."""

    type = "not_callable"

    def __init__(self, name: str) -> None:
        super().__init__(f"Trait {name} is not callable")
        self.name = name


class LookupFailedError(RetinueError):
    """A name matches nothing, or several things."""

    type = "not_found"
    kind = _REFUSED


class UnknownSkillError(LookupFailedError):
    """No visible skill has this id; a hidden skill gives the same error."""

    # P-22; SPEC: "Hidden vs missing"

    type = "unknown_skill"

    def __init__(
        self,
        skill: str,
        *,
        near: Sequence[str] = (),
        unasked: Sequence[str] = (),
    ) -> None:
        remedy = f"did you mean {', '.join(near)}?" if near else "list the skills: retinue find"
        if unasked:
            remedy += f" (could not be asked: {', '.join(unasked)})"
        super().__init__(f"Unknown skill: {skill}", remedy=remedy)
        self.skill = skill
        self.near = tuple(near)
        self.unasked = tuple(unasked)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.near:
            found["near"] = list(self.near)
        if self.unasked:
            found["registries_not_asked"] = list(self.unasked)
        return found


class SkillNotOfferedError(UnknownSkillError):
    """No agent of the directory offers the skill (P-01)."""

    type = "skill_not_offered"


class UnknownAgentError(LookupFailedError):
    """No agent of this name is visible."""

    type = "unknown_agent"

    def __init__(self, name: str, *, near: Sequence[str] = ()) -> None:
        remedy = f"did you mean {', '.join(near)}?" if near else "list them: retinue agents"
        super().__init__(f"Unknown agent: {name}", remedy=remedy)
        self.name = name
        self.near = tuple(near)


class UnknownRunError(LookupFailedError):
    """No run has this id."""

    type = "unknown_run"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"Unknown run: {run_id}", remedy="list them: retinue runs")
        self.run_id = run_id


class UnknownStepError(LookupFailedError):
    """A run or its definition has no step of this path."""

    type = "unknown_step"

    def __init__(self, step: str, *, known: Sequence[str] = ()) -> None:
        remedy = f"there are: {', '.join(known)}" if known else "list them: retinue runs ID"
        super().__init__(f"Unknown step: {step}", remedy=remedy)
        self.step = step


class UnknownWorkflowError(LookupFailedError):
    """No workflow has this name."""

    type = "unknown_workflow"

    def __init__(self, name: str, *, near: Sequence[str] = (), remedy: str = "") -> None:
        default = f"did you mean {', '.join(near)}?" if near else "list them: retinue workflows"
        super().__init__(f"Unknown workflow: {name}", remedy=remedy or default)
        self.name = name
        self.near = tuple(near)


class UnknownTokenError(LookupFailedError):
    """No token has this id."""

    type = "unknown_token"

    def __init__(self, token_id: str, *, near: Sequence[str] = ()) -> None:
        remedy = f"did you mean {', '.join(near)}?" if near else "list them: retinue token list"
        super().__init__(f"Unknown token: {token_id}", remedy=remedy)
        self.token_id = token_id
        self.near = tuple(near)


class UnknownRoleError(LookupFailedError):
    """There is no role of this name (SPEC 7, seed 002)."""

    type = "unknown_role"

    def __init__(self, role: str, known: Sequence[str]) -> None:
        super().__init__(f"Unknown role: {role}", remedy=f"there are: {', '.join(known)}")
        self.role = role


class RoleNotOfferedError(LookupFailedError):
    """No agent, or not the named one, has a visible skill with this role."""

    type = "role_not_offered"

    def __init__(self, role: str, agent: str | None = None) -> None:
        who = "No available agent has" if agent is None else f"Agent {agent} does not have"
        remedy = f"list the agents with the role: retinue agents --role {role}"
        super().__init__(f"{who} the role {role}", remedy=remedy)
        self.role = role
        self.agent = agent


class NoModelError(RoleNotOfferedError):
    """No agent can take the request: none has the role, or the caller may call none of them."""

    type = "no_model"

    def __init__(self, role: str, missing: str = "", others: Sequence[str] = ()) -> None:
        super().__init__(role)
        if missing:
            self.message += f" ({missing})"
        if others:
            self.message += f"; there are: {', '.join(others)}"
        self.args = (self.message,)
        self.remedy = (
            "configure a model: set ANTHROPIC_API_KEY, GEMINI_API_KEY or OPENAI_API_KEY for the hub, or "
            "install the command claude, gemini or codex; retinue doctor tells what is missing"
        )


class NobodyWillingError(LookupFailedError):
    """No agent that was asked before a step said that it can do it now."""

    type = "nobody_willing"

    def __init__(self, target: str, said: Sequence[str]) -> None:
        told = "; ".join(said[:5]) + (f"; and {len(said) - 5} more" if len(said) > 5 else "")
        super().__init__(
            f"no agent said that it can do {target} now ({told})",
            remedy="run the step without ask, try again later, or see: retinue ask --all --capabilities "
            + target,
        )
        self.target = target


class UnknownResourceError(LookupFailedError):
    """No visible resource has this uri; a hidden one gives the same error."""

    type = "unknown_resource"

    def __init__(self, uri: str) -> None:
        super().__init__(f"Unknown resource: {uri}")
        self.uri = uri

    @property
    def data(self) -> dict[str, Any]:
        return {"uri": self.uri}


class UnknownPromptError(LookupFailedError):
    """No visible prompt has this name; a hidden one gives the same error."""

    type = "unknown_prompt"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown prompt: {name}")
        self.name = name


class AmbiguousNameError(LookupFailedError):
    """A name matches several things, and nothing decides between them."""

    type = "ambiguous_name"

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        super().__init__(f"Ambiguous name: {name}", remedy=f"use one of: {', '.join(candidates)}")
        self.name = name
        self.candidates = tuple(candidates)

    @property
    def data(self) -> dict[str, Any]:
        return {"candidates": list(self.candidates)}


class VersionConflictError(LookupFailedError):
    """The skill or agent exists, but in no version of the requested range."""

    type = "version_conflict"

    def __init__(self, name: str, wanted: str, offered: Sequence[str]) -> None:
        super().__init__(f"No version of {name} fits {wanted}", remedy=f"offered: {', '.join(offered)}")
        self.wanted = wanted
        self.offered = tuple(offered)

    @property
    def data(self) -> dict[str, Any]:
        return {"wanted": self.wanted, "offered": list(self.offered)}


class AccessError(RetinueError):
    """The caller may not do this."""

    type = "access"
    kind = _REFUSED


class NotAuthenticatedError(AccessError):
    """No token, or an unknown one."""

    type = "not_authenticated"


class NotAllowedError(AccessError):
    """A known caller without permission, or a request from an origin that is not allowed."""

    type = "not_allowed"


class InsufficientScopeError(NotAllowedError):
    """A valid token without the required scope; ``scopes`` are those that would be sufficient."""

    type = "insufficient_scope"

    def __init__(self, message: str, *, scopes: Sequence[str], remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.scopes = tuple(scopes)

    @property
    def data(self) -> dict[str, Any]:
        return {"scopes": list(self.scopes)}


class GuardError(RetinueError):
    """The trace guard rejected the call before its skill ran.

    A rejection further down the chain is relayed unchanged: ``wire_data`` is then the ``data`` of the
    received error.
    """

    type = "guard"
    kind = _REFUSED

    def __init__(self, message: str, facts: Mapping[str, Any] | None = None, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.facts = dict(facts or {})
        self.wire_data: Any = None
        self.relayed = False

    @classmethod
    def relay(cls, message: str, wire_data: Any) -> Self:
        """The rejection by another process, with the ``data`` that it sent."""
        error = cls.__new__(cls)
        facts = dict(wire_data) if isinstance(wire_data, dict) else {}
        facts.pop("type", None)
        GuardError.__init__(error, message, facts, remedy=str(facts.pop("remedy", "")))
        error.wire_data = wire_data
        error.relayed = True
        return error

    @property
    def data(self) -> dict[str, Any]:
        return dict(self.facts)


class CallTooDeepError(GuardError):
    """A chain of calls exceeded the depth limit, or passed the same hub twice (S-14, S-15).

    ``drawn_path`` is the chain as text, for a model to act on.
    """

    type = "recursion_limit"

    def __init__(self, trace_id: str, depth: int, max_depth: int, drawn_path: str, cycle: str = "") -> None:
        loop = f"; the cycle is {cycle}" if cycle else ""
        facts = {"trace_id": trace_id, "depth": depth, "max_depth": max_depth, "path": drawn_path}
        super().__init__(
            f"Call chain too deep: hop {depth} of at most {max_depth}: {drawn_path}{loop}",
            facts | ({"cycle": cycle} if cycle else {}),
            remedy="answer from what is known instead of calling further",
        )

    @property
    def depth(self) -> int:
        """The depth of the rejected call."""
        return int(self.facts.get("depth", 0))

    @property
    def drawn_path(self) -> str:
        return str(self.facts.get("path", ""))

    @property
    def cycle(self) -> str:
        """The cycle that was found; "" = none."""
        return str(self.facts.get("cycle", ""))


class BudgetSpentError(GuardError):
    """The trace has used up its calls or its seconds, or a model agent its tokens or its money."""

    type = "budget_spent"

    def __init__(self, what: str, setting: str) -> None:
        super().__init__(
            f"Budget spent: no {what} left in this trace", {"what": what}, remedy=f"raise {setting}"
        )

    @classmethod
    def of_model(cls, agent: str, problem: str, setting: str) -> Self:
        """The refusal of a call that could cost more than the budget of a model agent has left."""
        error = cls.__new__(cls)
        facts = {"what": "money" if "cost" in setting else "tokens", "agent": agent, "setting": setting}
        GuardError.__init__(error, f"Budget spent: {problem}", facts, remedy=f"raise {setting}")
        return error

    @property
    def what(self) -> str:
        """``calls`` or ``seconds`` of a chain, ``tokens`` or ``money`` of a model agent."""
        return str(self.facts.get("what", ""))


class CircuitOpenError(GuardError):
    """A breaker is open; ``retry_after_s`` says for how long.

    The one of an agent is worth a retry after that time. The one of a trace is not: it has rejected calls of
    this chain, and would reject them again. ``waited_s`` = how long the caller waited in vain.
    """

    type = "circuit_open"
    kind = Kind(retryable=True, counts_against_health=False, on_error="refused")
    waited_s = 0.0

    def __init__(
        self, subject: str, retry_after_s: float, cause: str = "", facts: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(
            f"Circuit open for {subject}" + (f": {cause}" if cause else ""),
            {"retry_after_s": round(retry_after_s, 3)} | dict(facts or {}),
            remedy=f"try again in {render_duration(retry_after_s)}",
        )
        self._settle_kind()

    @classmethod
    def relay(cls, message: str, wire_data: Any) -> Self:
        error = super().relay(message, wire_data)
        error._settle_kind()
        return error

    @property
    def retry_after_s(self) -> float:
        found = self.facts.get("retry_after_s")
        return float(found) if isinstance(found, int | float) else 0.0

    @property
    def data(self) -> dict[str, Any]:
        # Relayed, it is an error of an agent that got its call; that one may have done something.
        more: dict[str, Any] = {"sent": True} if self.relayed else {}
        return self.facts | more | ({"waited_s": self.waited_s} if self.waited_s else {})

    def _settle_kind(self) -> None:
        if "trace_id" in self.facts:
            self.kind = _REFUSED


def find_guard_error(error_type: object) -> type[GuardError] | None:
    """The GuardError class with this ``type``; None for other types."""
    kinds = (CallTooDeepError, BudgetSpentError, CircuitOpenError)
    return next((kind for kind in kinds if kind.type == error_type), None)


class BusyError(RetinueError):
    """A rate or concurrency limit was reached; the same request may succeed later."""

    type = "busy"
    kind = Kind(retryable=True, counts_against_health=False, on_error="refused")

    def __init__(self, what: str, retry_after_s: float) -> None:
        super().__init__(f"Busy: {what}", remedy=f"try again in {render_duration(retry_after_s)}")
        self.retry_after_s = retry_after_s
        self.is_nested = False
        """Whether a further call of the skill was refused, so that the skill itself has begun."""

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = {"retry_after_s": round(self.retry_after_s, 3)}
        return {**found, "nested": True} if self.is_nested else found


class ExecutionError(RetinueError):
    """The skill was called and did not return a result."""

    type = "execution_error"


MAX_DETAIL_CHARACTERS = 2_000
"""What is kept of the further lines of an exception's text."""


class ExecutionFailedError(ExecutionError):
    """The skill raised; the message is one line of what it raised, its class name if empty (P-24).

    ``data`` has the class of the exception, the skill, and the further lines of its text.
    """

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


def _shorten(text: str) -> str:
    left = len(text) - MAX_DETAIL_CHARACTERS
    return text if left <= 0 else f"{text[:MAX_DETAIL_CHARACTERS]} … ({left:,} characters more)"


class OutputInvalidError(ExecutionError):
    """A result does not fit the skill's output schema, or is not a JSON value (P-13)."""

    type = "output_validation_error"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")

    def __init__(self, skill: str, problems: Sequence[Problem]) -> None:
        super().__init__(
            f"the result of {skill} breaks its output schema: {join_problems(problems)}",
            remedy="fix the skill or its output schema",
        )
        self.problems = tuple(problems)

    @classmethod
    def not_json(cls, skill: str, path: str, shape: str) -> OutputInvalidError:
        """The error of a result that is not JSON at ``path``; ``shape`` is what stands there."""
        problem = Problem(path, f"not a JSON value{f' at {path}' if path else ''}: {shape}")
        error = cls(skill, [problem])
        error.message = f"the result of {skill} is {problem.message}"
        error.args = (error.message,)
        error.remedy = "return JSON values, dataclasses, pydantic models, or types that pydantic encodes"
        return error

    @property
    def data(self) -> dict[str, Any]:
        return {"errors": [p.as_json() for p in self.problems]}


class EmptyOutputError(ExecutionError):
    """The skill succeeded without a result, where its caller requires one."""

    type = "empty_output"

    def __init__(self, skill: str) -> None:
        super().__init__(
            f"{skill} returned nothing", remedy="ask for a result, or set allow_empty: true on the step"
        )


class CallTimedOutError(ExecutionError):
    """A time limit ran out; names the layer and the setting of the limit (DESIGN 7)."""

    type = "timeout"
    kind = Kind(retryable=True, counts_against_health=False, on_error="timeout")

    def __init__(self, what: str, timeout_s: float, *, layer: str, setting: str) -> None:
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
    """The caller cancelled the call."""

    type = "cancelled"
    kind = Kind(retryable=False, counts_against_health=False, on_error="cancelled")

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was cancelled by its caller")


AWAY_RETRY_S = 2.0
"""After this time a call to an agent that is away is worth another try; a restart takes about that."""

HUB = "hub"
"""The name under which calls of a command or an agent to its hub fail."""


class AgentUnreachableError(ExecutionError):
    """The connection failed or broke, or the agent is away; ``sent`` = it may have run the call.

    ``waited_s`` = how long the caller waited for it in vain.
    """

    type = "agent_unreachable"
    kind = Kind(retryable=True, counts_against_health=True, on_error="unreachable")

    def __init__(self, agent: str, url: str, cause: str, *, sent: bool = False) -> None:
        super().__init__(
            f"{'the hub' if agent == HUB else f'agent {agent}'} at {url} is unreachable: {cause}",
            remedy="start it, or see its state: retinue agents",
        )
        self.agent = agent
        self.url = url
        self.cause = cause
        self.sent = sent
        self.waited_s = 0.0
        self.retry_after_s: float | None = None

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

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = {"agent": self.agent, "sent": self.sent}
        if self.retry_after_s is not None:
            found["retry_after_s"] = self.retry_after_s
        return found | ({"waited_s": self.waited_s} if self.waited_s else {})


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
        """The remote ``data.type`` where there is one (SPEC 2, doubt 1), otherwise the type of this class."""
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
]
"""Why a model gave no answer.

It or a content filter refused; it said nothing; its answer cannot be read; the prompt is too long; the key,
the credit, the model or the request was refused; the provider is unavailable; the command-line agent failed.
"""


class ModelError(ExecutionError):
    """A language model gave no usable answer; ``reason`` says why."""

    type = "model_error"

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
    def too_large(cls, agent: str, limit_bytes: int) -> Self:
        """An answer that was not read to its end."""
        return cls(agent, "rejected", f"its answer is larger than {limit_bytes:,} bytes")

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = {"agent": self.agent, "reason": self.reason}
        return found if self.retry_after_s is None else {**found, "retry_after_s": self.retry_after_s}


_MODEL_REMEDIES: Mapping[ModelReason, str] = {
    "refused": "word the request differently, or call another agent",
    "empty": "try again, or word the request differently",
    "malformed": "try again, or call another agent",
    "rejected": "correct the request, or the settings of the agent: retinue doctor",
    "unavailable": "try again later, or call another agent",
    "program": "run the command by hand to see what it lacks; see: retinue doctor",
}


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
    """The caller does not support this kind of question; ``capability`` is what it lacks."""

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
    """The person declined, closed the question, or gave an answer that does not fit the requested schema."""

    type = "input_refused"


class ExpressionError(ExecutionError):
    """A workflow expression failed at run time: a missing key, a wrong type, an exceeded limit."""

    type = "expression_error"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")

    def __init__(self, source: str, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"expression {source!r}: {problem}", remedy=remedy)
        self.source = source


INCOMPLETE = "incomplete"
"""The value of ``undo`` in the data of a failed run with steps that are still to be undone."""


class StepFailedError(ExecutionError):
    """A step failed, and so the run; names the step, its agent and the cause.

    ``cause`` is the failure as data: type, message, remedy, retryable, on_error, data. ``compensated``
    lists the steps to be undone, last first: step, skill, agent, ok, error. ``run`` is the id of the run,
    once it has ended: the remedy names the command that goes on.
    """

    type = "step_failed"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")

    def __init__(
        self,
        step: str,
        agent: str | None,
        cause: Mapping[str, Any],
        compensated: Sequence[Mapping[str, Any]] = (),
        run: str | None = None,
    ) -> None:
        by = f" (agent {agent})" if agent else ""
        super().__init__(f"step {step}{by} failed: {cause.get('message', '')}")
        self.step = step
        self.agent = agent
        self.cause = dict(cause)
        self.compensated = tuple(compensated)
        self.run = run
        self.remedy = "; then ".join(part for part in (str(cause.get("remedy", "")), self._way_on()) if part)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StepFailedError:
        """The error with this ``data``."""
        return cls(data["step"], data["agent"], data["cause"], data.get("compensated", ()), data.get("run"))

    @property
    def is_half_undone(self) -> bool:
        """Whether steps are still to be undone."""
        return any(not one["ok"] for one in self.compensated)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = {"step": self.step, "agent": self.agent, "cause": self.cause}
        if self.compensated:
            found["compensated"] = [dict(one) for one in self.compensated]
        if self.run is not None:
            found["run"] = self.run
            if self.is_half_undone:
                found["undo"] = INCOMPLETE
        return found

    def _way_on(self) -> str:
        if self.run is None:
            return ""
        if self.is_half_undone:
            return f"finish the undoing: retinue resume {self.run}"
        is_away = (
            self.cause.get("on_error") == "unreachable" or self.cause.get("type") == CircuitOpenError.type
        )
        if not is_away:
            return ""
        # What was undone is to be done again as well.
        first = self.compensated[-1]["step"] if self.compensated else self.step
        return f"run again: retinue rerun {self.run} --from {str(first).partition('/')[0]}"


class RunConflictError(RetinueError):
    """A run id, which is an idempotency key, was used again with other input."""

    type = "run_conflict"
    kind = _REQUEST

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id} exists with another workflow or input",
            remedy="leave the id out, or choose a new one",
        )
        self.run_id = run_id


class RegistryError(RetinueError):
    """An OCI registry or image layout could not do what was asked."""

    type = "registry_error"


class RegistryUnreachableError(RegistryError):
    """No answer from the registry within its time limit."""

    type = "registry_unreachable"

    def __init__(self, registry: str, cause: str) -> None:
        super().__init__(f"registry {registry} is unreachable: {cause}", remedy="is it running?")
        self.registry = registry


class RegistryRefusedError(RegistryError):
    """The registry answered with an error status."""

    type = "registry_refused"
    kind = _REFUSED

    def __init__(self, registry: str, status: int, detail: str) -> None:
        super().__init__(f"registry {registry} answered {status}: {detail}")
        self.registry = registry
        self.status = status

    @property
    def data(self) -> dict[str, Any]:
        return {"status": self.status}


class RegistryLoginError(RegistryRefusedError):
    """The registry, or its token server, does not accept our credentials."""

    type = "registry_login"

    def __init__(self, registry: str, detail: str) -> None:
        super().__init__(registry, 401, detail)
        self.remedy = "log in: docker login HOST, or write user:password@ into the registry's url"


class RegistryBusyError(RegistryRefusedError):
    """The registry answered 429 for longer than we may wait; ``retry_after_s`` is its retry-after."""

    type = "registry_busy"
    kind = _FAILED

    def __init__(self, registry: str, detail: str, retry_after_s: float) -> None:
        super().__init__(registry, 429, detail)
        self.remedy = f"try again in {max(1, round(retry_after_s))} s"
        self.retry_after_s = retry_after_s

    @property
    def data(self) -> dict[str, Any]:
        return {**super().data, "retry_after_s": self.retry_after_s}


class ReferenceNotFoundError(RegistryError):
    """No such repository, tag or digest."""

    type = "reference_not_found"
    kind = _REFUSED

    def __init__(self, registry: str, reference: str) -> None:
        super().__init__(f"{reference} is not in {registry}", remedy="list the agents: retinue agents")
        self.reference = reference


class InvalidReferenceError(RegistryError):
    """Text that is not an OCI reference."""

    type = "invalid_reference"
    kind = _REQUEST

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(
            f"{text!r} is not a reference: {problem}",
            remedy="write repository:tag or repository@sha256:<64 hex>",
        )


class DigestMismatchError(RegistryError):
    """Content does not have the digest under which it was requested."""

    type = "digest_mismatch"
    kind = _REFUSED

    def __init__(self, reference: str, wanted: str, found: str) -> None:
        super().__init__(f"{reference}: content has digest {found}, not {wanted}")
        self.wanted = wanted
        self.found = found


class MalformedArtifactError(RegistryError):
    """A manifest or agent card that cannot be read."""

    type = "malformed_artifact"
    kind = _REFUSED

    def __init__(self, reference: str, problem: str) -> None:
        super().__init__(f"{reference}: {problem}", remedy="publish it again: retinue publish")
        self.reference = reference


class ContentMissingError(MalformedArtifactError):
    """A manifest names content that its repository does not have."""

    type = "content_missing"

    def __init__(self, reference: str, digest: str) -> None:
        super().__init__(reference, f"its content {digest} is missing")
        self.digest = digest

    @property
    def data(self) -> dict[str, Any]:
        return {"digest": self.digest}


class CardSignatureError(MalformedArtifactError):
    """A card that is not signed with a trusted key, where the settings require that.

    ``state`` is that of its signature: none, invalid, unknown_key.
    """

    type = "card_signature"
    _REMEDIES: ClassVar[Mapping[str, str]] = {
        "none": "ask its publisher to sign it: publish it again",
        "unknown_key": "if you trust its publisher: retinue keys trust NAME JWKS",
        "invalid": "do not use it; ask its publisher to publish it again",
    }

    def __init__(self, reference: str, state: str, reason: str) -> None:
        super().__init__(reference, reason)
        self.remedy = self._REMEDIES.get(state, self._REMEDIES["invalid"])
        self.state = state

    @property
    def data(self) -> dict[str, Any]:
        return {"signature": self.state}


class RepositoryTakenError(RegistryError):
    """The repository holds a card of another name (SPEC 7, seed 001)."""

    type = "repository_taken"
    kind = _REFUSED

    def __init__(self, repository: str, holder: str, name: str) -> None:
        super().__init__(
            f"{repository} holds the card of {holder}, not of {name}",
            remedy="choose another with --repository",
        )


class TagTakenError(RegistryError):
    """The tag holds another major version of the agent (SPEC 7, versions side by side)."""

    type = "tag_taken"
    kind = _REFUSED

    def __init__(self, name: str, place: str, held: str, version: str, *, free_tag: str) -> None:
        tag = place.rpartition(":")[2]
        super().__init__(
            f"{place} holds version {held} of {name}; version {version} would replace it",
            remedy=f"publish under a tag of its own: --tag {free_tag}; "
            f"or remove the other first: retinue forget {name}@{tag}",
        )


class StateError(RetinueError):
    """The state folder or this machine is not usable."""

    type = "state_error"
    kind = Kind(retryable=False, counts_against_health=False, on_error="failed")


class StateDamagedError(StateError):
    """A file of the state folder cannot be read. Nothing was changed."""

    type = "state_damaged"

    def __init__(self, path: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"{path} is damaged: {problem}", remedy=remedy)
        self.path = path


class StorageFullError(StateError):
    """No space left on the device; no partial file remains."""

    type = "storage_full"

    def __init__(self, path: str) -> None:
        super().__init__(f"no space left for {path}; nothing was changed", remedy="free some space")
        self.path = path


class HubRunningError(StateError):
    """Another hub owns this state folder."""

    type = "hub_running"

    def __init__(self, url: str, pid: int, state: str) -> None:
        super().__init__(
            f"a hub already runs on {state}: {url} (pid {pid})",
            remedy="use that one, or give this one its own RETINUE_HOME",
        )


class PortInUseError(StateError):
    """Another program listens on the port."""

    type = "port_in_use"

    def __init__(self, host: str, port: int, *, remedy: str = "choose another with --port") -> None:
        super().__init__(f"{host}:{port} is in use", remedy=remedy)
        self.port = port


class ChildFailedError(StateError):
    """A supervised process did not become ready."""

    type = "child_failed"

    def __init__(self, name: str, problem: str, tail: str = "") -> None:
        super().__init__(f"{name} did not start: {problem}" + (f": {tail}" if tail else ""))
        self.name = name
