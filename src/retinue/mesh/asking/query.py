"""The reserved skill ``query_capabilities``: parses the query and answers from an agent's record.

Every agent answers it on the path of all calls. The arguments are the payload of a QUERY_CAPABILITIES, the
value is that of an INFORM_CAPABILITIES. An author's own judgement (`Can`) takes precedence over the record.

A capability matches a topic, or a visible skill by its id, a tag or a simile, whatever the case and the
separators. Skills that the caller may not see never match.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from retinue.core.errors import InvalidParametersError, InvalidSettingError, Problem
from retinue.core.json_values import name_shape
from retinue.core.record import (
    QUERY_CAPABILITIES,
    AgentRecord,
    Example,
    Hints,
    Skill,
    is_visible,
)

Json = dict[str, Any]
QueryType = Literal["summary", "specific", "action_details"]
MatchType = Literal["all", "any"]

QUERY_SKILL = Skill(
    id=QUERY_CAPABILITIES,
    description="Tells what the agent can do.",
    visibility="exposed",
    hints=Hints(read_only=True, idempotent=True),
    channel=False,
)
"""The reserved skill. It is not part of any agent record, so it never appears in cards, lists or searches."""

MAX_CAPABILITIES = 100
"""Capabilities in one question."""

_NAMED = "a list of non-empty strings"


@dataclass(frozen=True, slots=True)
class Query:
    """One question; ``capabilities`` belong to a specific one, ``action_name`` to action_details."""

    type: QueryType
    capabilities: tuple[str, ...] = ()
    match_type: MatchType = "all"
    action_name: str = ""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The capabilities or the action of the question; empty for a summary."""
        return (self.action_name,) if self.type == "action_details" else self.capabilities

    def as_payload(self) -> Json:
        """The arguments of the call."""
        if self.type == "summary":
            return {"query_type": self.type}
        if self.type == "action_details":
            return {"query_type": self.type, "query_parameters": {"action_name": self.action_name}}
        asked = {"capabilities": list(self.capabilities), "match_type": self.match_type}
        return {"query_type": self.type, "query_parameters": asked}


@dataclass(frozen=True, slots=True)
class Can:
    """The statement of an agent about one capability or action at this moment.

    ``yes`` None = as the record says. ``price`` in the mesh's own unit and ``time_s`` are estimates of the
    work, ``confidence`` is 0 to 1. ``reason`` is told to the caller. Raises InvalidSettingError.
    """

    yes: bool | None = None
    price: float | None = None
    time_s: float | None = None
    confidence: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        for name, most in (("price", math.inf), ("time_s", math.inf), ("confidence", 1.0)):
            value = getattr(self, name)
            if value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or not 0 <= value <= most:
                upper = "or more" if most == math.inf else "to 1"
                raise InvalidSettingError(
                    f"Can.{name}", f"it is {name_shape(value)}", remedy=f"give a number, 0 {upper}"
                )


_NOTHING_SAID: Mapping[str, Can] = {}


def parse_query(payload: Any) -> Query:
    """The question of a payload; raises InvalidParametersError (specification 7.1)."""
    if not isinstance(payload, Mapping):
        raise _invalid("", f"the payload is {name_shape(payload)}; it must be an object")
    query_type = payload.get("query_type")
    if query_type not in get_args(QueryType):
        options = ", ".join(get_args(QueryType))
        raise _invalid("query_type", f"field 'query_type' must be one of {options}")
    raw = payload.get("query_parameters")
    if raw is not None and not isinstance(raw, Mapping):
        raise _invalid(
            "query_parameters", f"field 'query_parameters' is {name_shape(raw)}; it must be an object"
        )
    parameters: Mapping[str, Any] = raw or {}
    if query_type == "summary":
        return Query("summary")
    if query_type == "action_details":
        name = parameters.get("action_name")
        if not isinstance(name, str) or not name.strip():
            raise _missing("action_name", "a non-empty string", name)
        return Query("action_details", action_name=name)
    capabilities = parameters.get("capabilities")
    if not isinstance(capabilities, list | tuple) or not capabilities:
        raise _missing("capabilities", _NAMED, capabilities)
    if len(capabilities) > MAX_CAPABILITIES:
        raise _missing("capabilities", f"a list of at most {MAX_CAPABILITIES} strings", capabilities)
    for capability in capabilities:
        if not isinstance(capability, str) or not capability.strip():
            raise _missing("capabilities", _NAMED, capabilities)
    match_type = parameters.get("match_type", "all")
    if match_type not in get_args(MatchType):
        raise _missing("match_type", "'all' or 'any'", match_type)
    return Query("specific", tuple(capabilities), match_type)


def make_query(
    capabilities: Sequence[str] = (), *, match: MatchType = "all", action: str | None = None
) -> Query:
    """A specific question, one about an action, or without both a summary.

    Raises InvalidParametersError.
    """
    if action is not None:
        return parse_query({"query_type": "action_details", "query_parameters": {"action_name": action}})
    if isinstance(capabilities, str):
        # its letters would be asked for, and nobody has them
        raise _missing("capabilities", _NAMED, capabilities)
    if not capabilities:
        return Query("summary")
    asked = {"capabilities": list(capabilities), "match_type": match}
    return parse_query({"query_type": "specific", "query_parameters": asked})


def fold(text: str) -> str:
    """The form in which capabilities are compared: ``Database_Interaction`` and ``database interaction``."""
    return " ".join(text.casefold().replace("_", " ").replace("-", " ").split())


def list_terms(record: AgentRecord, scopes: frozenset[str]) -> frozenset[str]:
    """Everything that a capability may match for a caller with these scopes, folded."""
    words: list[str] = [*record.topics]
    for skill in _visible(record, scopes):
        words += (skill.id, *skill.tags, *skill.similes)
    return frozenset(map(fold, words))


def answer_query(
    record: AgentRecord,
    query: Query,
    scopes: frozenset[str],
    judgements: Mapping[str, Can] = _NOTHING_SAID,
    *,
    is_live: bool = True,
) -> Json:
    """The payload of the answer for a caller with these scopes; ``judgements`` are by the words asked.

    Without ``is_live`` the agent itself was not asked, or could not say, and the payload tells so.
    """
    if query.type == "summary":
        payload = _summarize(record, scopes)
    elif query.type == "specific":
        payload = _match(record, query, scopes, judgements)
    else:
        payload = _detail(record, query.action_name, scopes, judgements)
    return payload if is_live else {**payload, "live": False}


def _summarize(record: AgentRecord, scopes: frozenset[str]) -> Json:
    actions = [{"name": skill.id, "description": skill.description} for skill in _visible(record, scopes)]
    return {"status": "success", "capabilities": {"topics": list(record.topics), "actions": actions}}


def _match(record: AgentRecord, query: Query, scopes: frozenset[str], judgements: Mapping[str, Can]) -> Json:
    terms = list_terms(record, scopes)
    matched: list[str] = []
    missing: list[str] = []
    for wanted in query.capabilities:
        own = judgements.get(wanted)
        has = fold(wanted) in terms if own is None or own.yes is None else own.yes
        (matched if has else missing).append(wanted)
    payload: Json = {
        "status": "success",
        "match_result": bool(matched) if query.match_type == "any" else not missing,
        "matched_capabilities": matched,
    }
    if missing:
        payload["missing_capabilities"] = missing
    return {
        **payload,
        **_terms_of(
            [
                (capability, judgements[capability])
                for capability in query.capabilities
                if capability in judgements
            ],
            matched,
        ),
    }


def _detail(record: AgentRecord, name: str, scopes: frozenset[str], judgements: Mapping[str, Can]) -> Json:
    skill = find_action(_visible(record, scopes), name)
    if skill is None:
        return {
            "status": "failure",
            "error_code": "unknown_action",
            "error_text": f"{record.name} has no action {name!r}",
        }
    action = {
        "name": skill.id,
        "description": skill.description,
        "similes": list(skill.similes),
        "input_schema": skill.input_schema,
        "output_schema": skill.output_schema,
        "examples": [_render_example(example) for example in skill.examples],
        "provider": record.provider,
    }
    payload: Json = {"status": "success", "action": action, "capabilities": {"actions": [action]}}
    own = judgements.get(name)
    if own is None:
        return payload
    available = {} if own.yes is None else {"available": own.yes}
    return {**payload, **available, **_terms_of([(name, own)], [name])}


def find_action(skills: Iterable[Skill], name: str) -> Skill | None:
    """The skill with this id, else with an equal folded id, else with such a simile."""
    offered = list(skills)
    wanted = fold(name)
    return (
        next((skill for skill in offered if skill.id == name), None)
        or next((skill for skill in offered if fold(skill.id) == wanted), None)
        or next((skill for skill in offered if wanted in map(fold, skill.similes)), None)
    )


def _terms_of(judgements: list[tuple[str, Can]], matched: list[str]) -> Json:
    """The terms of the whole: of what was matched, the highest price and time, the lowest confidence."""
    offers = [own for wanted, own in judgements if wanted in matched]
    terms: Json = {}
    for name, choose in (("price", max), ("time_s", max), ("confidence", min)):
        values = [value for own in offers if (value := getattr(own, name)) is not None]
        if values:
            terms[name] = choose(values)
    reasons = {wanted: own.reason for wanted, own in judgements if own.reason}
    return {**terms, "reasons": reasons} if reasons else terms


def _visible(record: AgentRecord, scopes: frozenset[str]) -> list[Skill]:
    return [
        skill
        for skill in record.skills
        if is_visible(skill.visibility, scopes) and skill.id != QUERY_CAPABILITIES
    ]


def _render_example(example: Example) -> Json:
    facts = {"text": example.text, "arguments": example.arguments, "result": example.result}
    return {name: value for name, value in facts.items() if value is not None}


def _missing(name: str, form: str, value: Any) -> InvalidParametersError:
    path = f"query_parameters.{name}"
    shape = "it is missing" if value is None else f"it is {name_shape(value)}"
    if isinstance(value, list) and form == _NAMED:
        shape = "it is empty" if not value else "one of them is not"
    return _invalid(path, f"field '{path}' must be {form}; {shape}")


def _invalid(path: str, message: str) -> InvalidParametersError:
    error = InvalidParametersError([Problem(path, message)])
    error.remedy = 'send {"query_type": "specific", "query_parameters": {"capabilities": ["python"]}}'
    return error
