"""Answers QUERY_IF, QUERY_REF and PROPOSE from the record of an agent and its live answers.

The capabilities of an agent come from its skill ``query_capabilities``, so that the same rights and the same
hook of its author decide as for QUERY_CAPABILITIES.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from retinue.core.call import Call, TraceContext, new_id
from retinue.core.json_values import name_shape
from retinue.core.record import QUERY_CAPABILITIES, AgentRecord, is_visible
from retinue.mesh.asking.query import find_action, fold
from retinue.mesh.channel import NullChannel
from retinue.mesh.permissions import may_call
from retinue.mesh.schema.checks import check_input
from retinue.messages.codec.envelope import INVALID_PAYLOAD, Envelope, NotUnderstoodError
from retinue.messages.codec.payloads import (
    PerformativeReply,
    failed,
    field_problem,
    refuse,
    rejected,
    reply_of_error,
    result,
)
from retinue.messages.codec.performatives import CODONS, FROM_FIPA, PERFORMATIVES, TO_FIPA
from retinue.messages.exchange import MessageExchange
from retinue.messages.tasks import MessageTask

_NULL = NullChannel()

CONDITIONS = ("capabilities", "action", "topic", "language")
REFERENCES = ("capabilities", "topics", "actions", "codons", "performatives", "fipa", "agents")
TOPICS = ("task", "capabilities")

FindRecord = Callable[[MessageExchange], Awaitable[AgentRecord | None]]


async def query_if(exchange: MessageExchange) -> PerformativeReply:
    """Whether every part of ``condition`` holds: INFORM_RESULT with ``holds``, true or false."""
    request = exchange.request
    condition = request.payload.get("condition")
    known = ", ".join(CONDITIONS)
    if not isinstance(condition, dict) or not condition:
        raise refuse(request, field_problem("condition", condition or None, f"give an object with {known}"))
    unknown = [name for name in condition if name not in (*CONDITIONS, "match_type")]
    if unknown:
        raise refuse(request, f"payload.condition.{unknown[0][:100]} is not known: give {known}")
    holds: dict[str, bool] = {}
    for name in ("capabilities", "topic"):
        if name in condition:
            wanted = condition[name] if name == "capabilities" else [condition[name]]
            asked: dict[str, Any] = {"capabilities": wanted}
            if name == "capabilities" and "match_type" in condition:
                asked["match_type"] = condition["match_type"]
            answer = await _ask(exchange, "specific", asked)
            if isinstance(answer, PerformativeReply):
                return answer
            holds[name] = answer.get("match_result") is True
    if "action" in condition:
        answer = await _ask(exchange, "action_details", {"action_name": condition["action"]})
        if isinstance(answer, PerformativeReply):
            return answer
        holds["action"] = _is_available(answer)
    if "language" in condition:
        if not isinstance(condition["language"], str):
            raise refuse(request, field_problem("condition.language", condition["language"], "give a string"))
        holds["language"] = fold(condition["language"]) in ("en", "application/json")
    verdict = bool(holds) and all(holds.values())
    return result("true" if verdict else "false", {"holds": verdict, "condition": condition, "parts": holds})


async def _ask(
    exchange: MessageExchange, kind: str, parameters: Mapping[str, Any]
) -> Mapping[str, Any] | PerformativeReply:
    """The payload of INFORM_CAPABILITIES, or the reply to a question that failed."""
    query = {"query_type": kind, "query_parameters": dict(parameters)}
    outcome = await exchange.run(QUERY_CAPABILITIES, query, exchange.target, _NULL, exchange.deadline)
    if outcome.error is not None:
        return reply_of_error(outcome.error)
    return outcome.value if isinstance(outcome.value, Mapping) else {}


def _is_available(details: Mapping[str, Any]) -> bool:
    """Whether an answer to action_details reports the action as available now."""
    return details.get("status") == "success" and details.get("available") is not False


async def query_ref(
    exchange: MessageExchange, task: MessageTask | None, find_record: FindRecord
) -> PerformativeReply:
    """The target of a reference: a task of the sender, the codons, the capabilities, the hub's agents."""
    request = exchange.request
    if task is not None:
        return task.describe()
    reference = request.payload.get("reference")
    if not isinstance(reference, str) or not reference:
        known = ", ".join(REFERENCES)
        raise refuse(
            request, field_problem("reference", reference, f"give one of {known}, or the id of a task")
        )
    lists: Mapping[str, Any] = {
        "codons": [codon.as_json() for codon in CODONS.values()],
        "performatives": [performative.as_json() for performative in PERFORMATIVES.values()],
        "fipa": {"to": dict(TO_FIPA), "from": dict(FROM_FIPA)},
    }
    if reference in lists:
        return result(f"{len(lists[reference])} {reference}", {reference: lists[reference]})
    if reference in ("capabilities", "topics", "actions"):
        answer = await _ask(exchange, "summary", {})
        if isinstance(answer, PerformativeReply):
            return answer
        capabilities = answer.get("capabilities")
        summary = capabilities if isinstance(capabilities, Mapping) else {}
        details = dict(summary) if reference == "capabilities" else {reference: summary.get(reference, [])}
        return result(reference, details)
    if reference == "agents":
        return await _list_agents(exchange)
    record = await find_record(exchange)
    skills = () if record is None else record.skills
    visible = [skill for skill in skills if is_visible(skill.visibility, exchange.principal.scopes)]
    if (named := find_action(visible, reference)) is not None:
        answer = await _ask(exchange, "action_details", {"action_name": named.id})
        return answer if isinstance(answer, PerformativeReply) else result(named.id, answer)
    return failed(
        "unknown_reference",
        f"payload.reference {reference[:100]!r} names nothing here: give one of {', '.join(REFERENCES)}, the "
        "id of a skill, or the id of a task of yours",
    )


async def _list_agents(exchange: MessageExchange) -> PerformativeReply:
    """The directory as Yellow Pages: the hub's agents, by words where the payload has a ``query``."""
    arguments = {
        name: value
        for name in ("query", "limit")
        if (value := exchange.request.payload.get(name)) is not None
    }
    outcome = await exchange.run("list_agents", arguments, exchange.target, _NULL, exchange.deadline)
    if outcome.error is not None:
        return reply_of_error(outcome.error)
    value = outcome.value if isinstance(outcome.value, Mapping) else {}
    agents = value.get("agents", [])
    return result(f"{len(agents)} agents", dict(value))


async def propose(
    exchange: MessageExchange, record: AgentRecord | None, skill_id: str, arguments: Mapping[str, Any]
) -> PerformativeReply:
    """TASK_ACCEPT where the agent would run the task: it offers the skill, and the arguments fit.

    Nothing runs. The agent's own answer of the moment is asked for, so that its author's hook may say no.
    """
    skill = None if record is None else record.find_skill(skill_id)
    if skill is None:
        return rejected("incapable", "name one agent in receiver.agent_id: a proposal is made to one agent")
    if not may_call(skill, exchange.principal.scopes):
        return rejected(
            "unauthorized", f"{skill_id} runs code and wants a token — send one as a bearer token"
        )
    trial = Call(
        id=new_id(),
        skill=skill_id,
        arguments=dict(arguments),
        principal=exchange.principal,
        endpoint="messages",
        trace=TraceContext(id=""),
        agent=exchange.target,
    )
    if skill.input_schema is not None:
        check_input(skill, trial)
    live = await _ask(exchange, "action_details", {"action_name": skill_id})
    if isinstance(live, PerformativeReply):
        return live
    terms = {name: live[name] for name in ("price", "time_s", "confidence", "reasons") if name in live}
    if not _is_available(live):
        reason = live.get("error_text") or "; ".join(map(str, (terms.get("reasons") or {}).values()))
        return rejected("incapable", reason or f"{skill_id} is not available now")
    payload = {"status": "accepted", "comments": f"{skill_id} can be requested with these arguments"}
    return PerformativeReply("TASK_ACCEPT", {**payload, **({"terms": terms} if terms else {})})


def missing_callback(request: Envelope) -> NotUnderstoodError:
    """The error for a SUBSCRIBE without a callback url."""
    return NotUnderstoodError(
        INVALID_PAYLOAD,
        "callback_url is missing: give the http or https url that the news are sent to",
        request,
    )


def needless_callback(request: Envelope) -> NotUnderstoodError:
    """A task with a callback where its caller gets the result in any case."""
    return NotUnderstoodError(
        INVALID_PAYLOAD,
        "callback_url is refused: this call returns the result of the task; leave callback_url out, or POST "
        "the message to the hub's /messages",
        request,
    )


def unknown_task(request: Envelope) -> NotUnderstoodError:
    """A reference to a task or subscription that the sender does not have."""
    task_id = request.payload.get("task_id")
    if isinstance(task_id, str) and task_id:
        problem = f"payload.task_id {task_id[:100]!r} names no task or subscription of yours"
    else:
        problem = f"payload.task_id is {'missing' if task_id is None else name_shape(task_id)}"
    return NotUnderstoodError(
        INVALID_PAYLOAD,
        f"{problem}: give the task_id_assigned of TASK_ACCEPT, or the message_id of your message",
        request,
    )


def unknown_topic(request: Envelope) -> NotUnderstoodError:
    """A SUBSCRIBE to something else."""
    topic = request.payload.get("topic")
    shape = repr(topic[:40]) if isinstance(topic, str) else name_shape(topic)
    return NotUnderstoodError(
        INVALID_PAYLOAD, f"payload.topic is {shape}: give task or capabilities", request
    )
