"""Rebuilds typed errors from the JSON-RPC errors of other processes.

A skill that catches ``CallTimedOutError`` of a further call catches it whether the called agent runs in this
process or elsewhere. A hub or a relay passes the RemoteFaultError on with its original text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retinue.core import errors as e
from retinue.core.errors import Problem, RemoteFaultError, RetinueError

PREFIXES = (e.EXECUTION_FAILED, "Invalid parameters: ", "Invalid request: ", "Parse error: ")
"""The prefixes that endpoints write before messages of errors (`web.error_table`)."""

Facts = Mapping[str, Any]


def rebuild_error(error: RetinueError) -> RetinueError:
    """The error of another process as one of this process; any other error unchanged.

    Errors of unknown types, and of data that do not belong to their type, stay a RemoteFaultError.
    """
    if not isinstance(error, RemoteFaultError):
        return error
    build = _BUILDERS.get(error.remote_type)
    if build is None:
        return error
    message = plain_message(error.message)
    try:
        rebuilt = build(error, message, error.fault_data)
    except (KeyError, TypeError, ValueError, AttributeError):
        return error
    rebuilt.message, rebuilt.args, rebuilt.remedy = message, (message,), error.remedy
    return rebuilt


def plain_message(message: str) -> str:
    """The message without the prefix of an endpoint."""
    for prefix in PREFIXES:
        if message.startswith(prefix):
            return message.removeprefix(prefix)
    return message


def _problems(facts: Facts) -> Sequence[Problem]:
    return [
        Problem(problem["path"], problem["message"], problem.get("hint", "")) for problem in facts["errors"]
    ]


def _of_skill(kind: type[e.UnknownSkillError]) -> Callable[[RemoteFaultError, str, Facts], RetinueError]:
    def build(error: RemoteFaultError, message: str, facts: Facts) -> RetinueError:
        near, unasked = facts.get("near", ()), facts.get("registries_not_asked", ())
        return kind(message.removeprefix("Unknown skill: "), near=near, unasked=unasked)

    return build


def _busy(error: RemoteFaultError, message: str, facts: Facts) -> RetinueError:
    busy = e.BusyError("", float(facts["retry_after_s"]))
    busy.is_nested = facts.get("nested") is True
    return busy


def _stopping(error: RemoteFaultError, message: str, facts: Facts) -> RetinueError:
    stopping = e.StoppingError(float(facts["retry_after_s"]))
    stopping.is_nested = facts.get("nested") is True
    return stopping


def _out_of_memory(error: RemoteFaultError, message: str, facts: Facts) -> RetinueError:
    short = e.OutOfMemoryError(retry_after_s=float(facts["retry_after_s"]))
    short.is_nested = facts.get("nested") is True
    return short


_BUILDERS: Mapping[str, Callable[[RemoteFaultError, str, Facts], RetinueError]] = {
    e.InvalidRequestError.type: lambda _, m, f: e.InvalidRequestError(m),
    e.InvalidSettingError.type: lambda _, m, f: e.InvalidSettingError(f["field"], "", remedy=""),
    e.InvalidParametersError.type: lambda _, m, f: e.InvalidParametersError(_problems(f)),
    e.TooLargeError.type: lambda _, m, f: e.TooLargeError("", int(f["limit"]), f["unit"]),
    e.QuotaExceededError.type: lambda _, m, f: e.QuotaExceededError("", int(f["used"]), 0, int(f["limit"])),
    e.UnknownSkillError.type: _of_skill(e.UnknownSkillError),
    e.SkillNotOfferedError.type: _of_skill(e.SkillNotOfferedError),
    e.UnknownAgentError.type: lambda _, m, f: e.UnknownAgentError(m.removeprefix("Unknown agent: ")),
    e.AmbiguousNameError.type: lambda _, m, f: e.AmbiguousNameError(
        m.removeprefix("Ambiguous name: "), f["candidates"]
    ),
    e.UnknownRunError.type: lambda _, m, f: e.UnknownRunError(m.removeprefix("Unknown run: ")),
    e.UnknownApprovalError.type: lambda _, m, f: e.UnknownApprovalError(m.removeprefix("Unknown approval: ")),
    e.UnknownScheduleError.type: lambda _, m, f: e.UnknownScheduleError(m.removeprefix("Unknown schedule: ")),
    e.UnknownArtifactError.type: lambda _, m, f: e.UnknownArtifactError(m.removeprefix("Unknown artifact: ")),
    e.UnknownStepError.type: lambda _, m, f: e.UnknownStepError(m.removeprefix("Unknown step: ")),
    e.UnknownWorkflowError.type: lambda _, m, f: e.UnknownWorkflowError(m.removeprefix("Unknown workflow: ")),
    e.RunConflictError.type: lambda _, m, f: e.RunConflictError(m.removeprefix("Run ").partition(" ")[0]),
    e.KeyConflictError.type: lambda _, m, f: e.KeyConflictError(
        m.removeprefix("Idempotency key ").partition(" ")[0]
    ),
    e.DefinitionError.type: lambda _, m, f: e.DefinitionError(
        f["problem"],
        source=f["source"],
        line=f["line"],
        column=f["column"],
        path=tuple(f["path"]),
        remedy="",
    ),
    e.VersionConflictError.type: lambda _, m, f: e.VersionConflictError("", f["wanted"], f["offered"]),
    e.NotAuthenticatedError.type: lambda _, m, f: e.NotAuthenticatedError(m),
    e.NotAllowedError.type: lambda _, m, f: e.NotAllowedError(m),
    e.InsufficientScopeError.type: lambda _, m, f: e.InsufficientScopeError(m, scopes=f["scopes"]),
    e.PolicyDeniedError.type: lambda _, m, f: e.PolicyDeniedError(m, policies=f["policies"]),
    e.ApprovalNeededError.type: lambda _, m, f: e.ApprovalNeededError(
        m, approval=f["approval"], policies=f["policies"]
    ),
    e.BusyError.type: _busy,
    e.StoppingError.type: _stopping,
    e.OutOfMemoryError.type: _out_of_memory,
    e.ExecutionFailedError.type: lambda _, m, f: e.ExecutionFailedError(
        m, exception=f.get("exception", ""), detail=f.get("detail", ""), skill=f.get("skill", "")
    ),
    e.IncapableError.type: lambda _, m, f: e.IncapableError(m),
    e.OutputInvalidError.type: lambda _, m, f: e.OutputInvalidError("", _problems(f), answer=f.get("answer")),
    e.CallTimedOutError.type: lambda _, m, f: e.CallTimedOutError(
        "", float(f["timeout_s"]), layer=f["layer"], setting=f["setting"]
    ),
    e.CallCancelledError.type: lambda _, m, f: e.CallCancelledError(""),
    e.AgentUnreachableError.type: lambda _, m, f: e.AgentUnreachableError(
        f["agent"], "", "", sent=bool(f["sent"])
    ),
    e.ModelError.type: lambda _, m, f: e.ModelError(
        f["agent"], f["reason"], "", retry_after_s=f.get("retry_after_s")
    ),
    e.InputRequiredError.type: lambda _, m, f: e.InputRequiredError(m),
    e.CannotAskError.type: lambda _, m, f: e.CannotAskError(f["capability"]),
    e.InputRefusedError.type: lambda _, m, f: e.InputRefusedError(m),
    e.LimitedError.type: lambda _, m, f: e.LimitedError.from_data(f),
    e.StepFailedError.type: lambda _, m, f: e.StepFailedError.from_data(f),
    e.NondeterminismError.type: lambda _, m, f: e.NondeterminismError.from_data(f),
}
"""By the type that the wire carries: the error of that type, from its plain message and its data."""


def describe_fault(message: str, facts: Any) -> str:
    """A message for a person or a model: with the hints, the exception and the skill that ``facts`` have.

    ``message`` and ``facts`` are those of `/execute`, where hints stand in the data only (specification 7.8).
    The text may have several lines.
    """
    if not isinstance(facts, Mapping):
        return message
    problems = facts.get("errors")
    for problem in problems if isinstance(problems, list) else ():
        if isinstance(problem, Mapping) and (hint := problem.get("hint")):
            text = str(problem.get("message"))
            # a peer's message may have the hint already, as that of A2A
            if f"{text} — {hint}" not in message:
                message = message.replace(text, f"{text} — {hint}", 1)
    exception, detail, skill = (facts.get(key) for key in ("exception", "detail", "skill"))
    if isinstance(exception, str) and exception:
        plain = plain_message(message)
        before = message[: len(message) - len(plain)]
        named = plain if plain.startswith(exception) else f"{exception}: {plain}"
        message = before + named + (f" (skill {skill})" if skill else "")
    return f"{message}\n{detail}" if isinstance(detail, str) and detail else message


def describe_for_model(message: str, facts: Any) -> str:
    """As `describe_fault`, with the remedy."""
    remedy = facts.get("remedy") if isinstance(facts, Mapping) else None
    described = describe_fault(message, facts)
    return f"{described} — {remedy}" if isinstance(remedy, str) and remedy else described
