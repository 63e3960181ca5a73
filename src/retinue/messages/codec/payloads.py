"""Checks payloads of incoming performatives, and builds payloads of outgoing ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.call import Outcome, Part
from retinue.core.errors import RetinueError
from retinue.core.json_values import name_shape
from retinue.core.record import QUERY_CAPABILITIES, Skill
from retinue.core.remote_faults import describe_for_model, rebuild_error
from retinue.core.session_field import fill_session
from retinue.mesh.asking.query import find_action, fold
from retinue.messages.codec.envelope import INVALID_PAYLOAD, Envelope, NotUnderstoodError
from retinue.web.error_table import facts_of, performative_fault

PRIORITIES = ("low", "medium", "high")
INTERRUPTED = "interrupted"
"""The error code of a task whose process ended while it ran."""

_SUMMARY_CHARS = 300

Payload = Mapping[str, Any]


def field_problem(name: str, value: Any, remedy: str) -> str:
    """A problem with a field of the payload: its name, its shape and the remedy."""
    shape = "missing" if value is None else name_shape(value)
    return f"payload.{name} is {shape}: {remedy}"


def refuse(envelope: Envelope, *problems: str) -> NotUnderstoodError:
    """The error for a payload with these problems."""
    return NotUnderstoodError(INVALID_PAYLOAD, "; ".join(problems), envelope)


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a TASK_REQUEST or a PROPOSE."""

    type: str = ""
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    priority: str | None = None


def read_task(envelope: Envelope) -> Task:
    """The task of a payload; raises NotUnderstoodError with all problems."""
    payload = envelope.payload
    problems = [
        field_problem(name, payload[name], "give a string, or leave it out")
        for name in ("task_type", "task_description")
        if payload.get(name) is not None and not isinstance(payload[name], str)
    ]
    parameters = payload.get("task_parameters")
    if parameters is not None and not isinstance(parameters, dict):
        problems.append(
            field_problem("task_parameters", parameters, "give an object with the skill's arguments")
        )
    priority = payload.get("priority")
    if priority is not None and priority not in PRIORITIES:
        shape = repr(priority[:40]) if isinstance(priority, str) else name_shape(priority)
        problems.append(f"payload.priority is {shape}: give low, medium or high, or leave it out")
    if not problems and not any(
        payload.get(key) for key in ("task_type", "task_description", "task_parameters")
    ):
        problems.append(
            "payload.task_type, task_description and task_parameters are missing: give task_type, the id of "
            "a skill, and task_parameters, its arguments"
        )
    if problems:
        raise refuse(envelope, *problems)
    return Task(payload.get("task_type") or "", payload.get("task_description") or "", parameters, priority)


def choose_skill(task: Task, ontology: str, skills: Sequence[Skill]) -> Skill | None:
    """The skill that a task means: by ``task_type``, else by its ontology, else the only one.

    ``task_type`` is a skill's id or simile, as in action_details. An ontology means the skill that its last
    part names: ``…:code/python/debug_request`` a skill ``debug_request`` or ``debug``. None where nothing is
    meant.
    """
    if task.type:
        return find_action(skills, task.type)
    # the reserved skill is no task, unless it is named
    offered = [skill for skill in skills if skill.id != QUERY_CAPABILITIES]
    concept = fold(ontology.rpartition("/")[2])
    named = find_action(offered, concept) or find_action(offered, concept.removesuffix(" request"))
    return named or (offered[0] if len(offered) == 1 else None)


def arguments_of(task: Task, skill: Skill | None, conversation: str | None = None) -> dict[str, Any]:
    """The skill's arguments: the parameters, and the words of the task where its schema wants them.

    ``task_description`` goes to the property of that name, else to ``prompt``, else to the only required
    text that the parameters leave out. The ``conversation`` is the session of a skill that takes one.
    """
    arguments = dict(task.parameters or {})
    schema = None if skill is None else skill.input_schema
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return arguments
    for name, value in (("task_type", task.type), ("priority", task.priority)):
        if value and name in properties:
            arguments.setdefault(name, value)
    if task.description:
        target = _description_target(properties, schema.get("required") if schema else None)
        if target is not None:
            arguments.setdefault(target, task.description)
    filled: dict[str, Any] = fill_session(arguments, schema, conversation)
    return filled


def _description_target(properties: Mapping[str, Any], required: Any) -> str | None:
    for name in ("task_description", "prompt"):
        if name in properties:
            return name
    texts = [
        str(name)
        for name in (required if isinstance(required, list | tuple) else ())
        if isinstance(properties.get(name), Mapping) and properties[name].get("type") == "string"
    ]
    return texts[0] if len(texts) == 1 else None


# What goes out


@dataclass(frozen=True, slots=True)
class PerformativeReply:
    """A performative with its payload, before it is put into an envelope."""

    performative: str
    payload: Payload


def accepted(task_id: str, comments: str = "") -> PerformativeReply:
    """TASK_ACCEPT: the result follows, or is asked for with QUERY_REF and this id."""
    payload = {"status": "accepted", "task_id_assigned": task_id}
    return PerformativeReply("TASK_ACCEPT", {**payload, "comments": comments} if comments else payload)


def not_understood(reason_code: str, text: str) -> PerformativeReply:
    """NOT_UNDERSTOOD with its reason."""
    return PerformativeReply("NOT_UNDERSTOOD", {"reason_code": reason_code, "reason_text": text})


def rejected(reason_code: str, text: str, data: Any = None) -> PerformativeReply:
    """TASK_REJECT with its reason."""
    payload = {"status": "rejected", "reason_code": reason_code, "reason_text": text}
    return PerformativeReply("TASK_REJECT", payload if data is None else {**payload, "data": data})


def failed(error_code: str, text: str, data: Any = None) -> PerformativeReply:
    """FAILURE with its error."""
    payload = {"status": "failure", "error_code": error_code, "error_text": text}
    return PerformativeReply("FAILURE", payload if data is None else {**payload, "data": data})


def not_json(cause: TypeError) -> PerformativeReply:
    """FAILURE for a result that the encoder of JSON has refused."""
    return failed("output_validation_error", f"the result is not JSON: {cause}")


def result(summary: str, details: Mapping[str, Any] | None = None, **more: Any) -> PerformativeReply:
    """INFORM_RESULT of a question or a task that succeeded."""
    payload: dict[str, Any] = {"task_status": "success", "result_summary": summary}
    if details is not None:
        payload["result_details"] = details
    return PerformativeReply("INFORM_RESULT", {**payload, **more})


def reply_of_error(error: RetinueError) -> PerformativeReply:
    """An error as the performative that the table gives it; the text has hints and remedy."""
    error = rebuild_error(error)
    fault, facts = performative_fault(error), facts_of(error)
    text = describe_for_model(fault.reason_text, facts)
    if fault.performative == "NOT_UNDERSTOOD":
        return not_understood(fault.reason_code, text)
    build = rejected if fault.performative == "TASK_REJECT" else failed
    return build(fault.reason_code, text, facts)


def reply_of_outcome(outcome: Outcome, task_id: str) -> PerformativeReply:
    """INFORM_RESULT of a call that is done, else what its error is as a performative."""
    if outcome.error is not None:
        reply = reply_of_error(outcome.error)
        if outcome.usage is None:
            return reply
        return PerformativeReply(reply.performative, {**reply.payload, "usage": dict(outcome.usage)})
    value = outcome.value
    details = value if isinstance(value, Mapping) else {"result": value}
    more: dict[str, Any] = {"artifacts": artifacts} if (artifacts := _artifacts(outcome.parts)) else {}
    if outcome.usage is not None:
        more["usage"] = dict(outcome.usage)
    if outcome.warnings:
        more["warnings"] = list(outcome.warnings)
    return result(_summarise(value, outcome), details, task_id=task_id, **more)


def _summarise(value: Any, outcome: Outcome) -> str:
    if isinstance(value, Mapping):
        lines = [
            value[key]
            for key in ("result_summary", "summary", "text", "answer")
            if isinstance(value.get(key), str)
        ]
        value = lines[0] if lines else None
    if isinstance(value, str) and value.strip():
        text = " ".join(value[: _SUMMARY_CHARS * 4].split())
        return text if len(text) <= _SUMMARY_CHARS else text[: _SUMMARY_CHARS - 1] + "…"
    return f"{outcome.skill} of {outcome.agent} is done" if outcome.agent else f"{outcome.skill} is done"


def _artifacts(parts: Iterable[Part]) -> list[dict[str, Any]]:
    artifacts: list[dict[str, Any]] = []
    for part in parts:
        if part.kind in ("text", "data"):
            artifacts.append({"type": "log", "content": part.value, "mime": part.mime})
        elif part.kind == "resource" and isinstance(part.value, Mapping):
            content = {key: part.value[key] for key in ("text", "blob") if key in part.value}
            artifacts.append(
                {"type": "file", "path": part.value.get("uri", ""), "mime": part.mime, **content}
            )
        else:
            artifacts.append({"type": "file", "path": part.name or "", "mime": part.mime, "blob": part.value})
    return artifacts
