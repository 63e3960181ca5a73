"""Runs the cases of policies: calls with the decision that is expected, as YAML files have them.

A case names a call and an expected verdict. The facts of the skill that policies may read are in the case, so
no mesh is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError
from retinue.core.record import Hints, Item, Prompt, Skill
from retinue.core.record import Resource as ReadableResource
from retinue.policies.decision import CallFacts, Decision, Engine, Verdict
from retinue.policies.entities import (
    CALL,
    GET_PROMPT,
    LIST,
    READ,
    Caller,
    Resource,
    entity_value,
    name_principal,
    read_zone,
    render_budgets,
    render_time,
)
from retinue.policies.policy_set import PolicySet

_ACTIONS = {"call": CALL, "list": LIST, "read": READ, "prompt": GET_PROMPT}

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
"""When calls are made in cases that name no time: a Wednesday."""


def _split(call: Any) -> Any:
    if not isinstance(call, str) or "/" not in call:
        raise ValueError("write AGENT/SKILL")
    return call


def _as_utc(now: datetime) -> datetime:
    try:
        return now.replace(tzinfo=now.tzinfo or UTC).astimezone(UTC)
    except OverflowError:
        raise ValueError("the year in UTC is not 1 to 9999") from None


def _check_zone(name: str) -> str:
    read_zone(name)
    return name


class CaseSkill(BaseModel):
    """The facts of the skill in a case."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    runs_code: bool = False
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = Field(default_factory=dict)
    visibility: Literal["private", "mesh", "exposed"] = "mesh"
    version: str = "1.0.0"
    source: str = "home"
    trust: Literal["own_mesh", "signed", "imported", "network_member"] = "own_mesh"


class Case(BaseModel):
    """One case; ``policies`` are the ids of those that decide, where the case names them.

    With the action ``read``, ``call`` names a resource as AGENT/URI, with ``prompt`` a prompt as AGENT/NAME.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    call: Annotated[str, BeforeValidator(_split)]
    action: Literal["call", "list", "read", "prompt"] = "call"
    caller: str = "local"
    scopes: tuple[str, ...] = ("exposed", "mesh")
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    origin: str | None = None
    skill: CaseSkill = CaseSkill()
    endpoint: str = "mcp"
    now: Annotated[datetime, AfterValidator(_as_utc)] = NOON
    chain: tuple[str, ...] = ()
    trusted: bool = True
    run: bool = False
    can_ask: bool = False
    sources: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    timezone: Annotated[str, AfterValidator(_check_zone)] = "UTC"
    calls_left: int | None = None
    tokens_left: int | None = None
    dollars_left: float | None = None
    expect: Verdict
    policies: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        return self.name or f"{self.caller} calls {self.call}"


class CaseResult(NamedTuple):
    """A case with what was decided; ``problem`` is "" if that was expected."""

    case: Case
    problem: str


def parse_cases(file: str, value: Any) -> list[Case]:
    """The cases of a file: a list of mappings. Raises InvalidSettingError."""
    if not isinstance(value, list):
        raise InvalidSettingError(
            file, "not a list of cases", remedy="write - call: AGENT/SKILL, expect: deny"
        )
    cases: list[Case] = []
    for number, row in enumerate(value, 1):
        try:
            cases.append(Case.model_validate(row))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidSettingError(
                f"{file}: case {number}", f"{where}: {first['msg']}", remedy="correct the case"
            ) from None
    return cases


def run_cases(policies: PolicySet, cases: Sequence[Case]) -> list[CaseResult]:
    """What the policies decide about each case."""
    engine = Engine(policies)
    return [CaseResult(case, _run(engine, case)) for case in cases]


def decide_case(policies: PolicySet, case: Case) -> Decision:
    """What the policies decide about the call of a case, whatever it expects."""
    return Engine(policies).decide(_read_facts(case))


def _run(engine: Engine, case: Case) -> str:
    decision = engine.decide(_read_facts(case))
    ids = [policy.id for policy in decision.policies]
    named = f" by {', '.join(ids)}" if ids else ""
    because = f": {decision.problem}" if decision.problem else ""
    if decision.verdict != case.expect:
        return f"{decision.verdict}{named}{because}; expected {case.expect}"
    if case.policies is not None and set(case.policies) != set(ids):
        return (
            f"{decision.verdict}{named or ' by no policy'}{because}; expected by {', '.join(case.policies)}"
        )
    return ""


def _read_facts(case: Case) -> CallFacts:
    agent, _, name = case.call.partition("/")
    facts = case.skill
    hints = Hints(facts.read_only, facts.destructive, facts.idempotent, facts.open_world, facts.runs_code)
    item: Item = Skill(name, hints=hints, tags=facts.tags, visibility=facts.visibility)
    if case.action == "read":
        item = ReadableResource(name, name, visibility=facts.visibility)
    elif case.action == "prompt":
        item = Prompt(name, visibility=facts.visibility)
    resource = Resource.make(agent, facts.version, facts.source, facts.trust, item, facts.labels)
    caller = Caller.of(Principal(case.caller, "mesh", frozenset(case.scopes)))
    action = _ACTIONS[case.action]
    now = case.now
    context: dict[str, Any] = {
        "endpoint": case.endpoint,
        "now": {"__extn": {"fn": "datetime", "arg": now.strftime("%Y-%m-%dT%H:%M:%SZ")}},
        "depth": len(case.chain),
        "chain": [entity_value(name_principal(name)) for name in case.chain],
        "trusted": case.trusted,
        "run": case.run,
        "can_ask": case.can_ask,
        "sources": [entity_value(name_principal(name)) for name in (*case.sources, *case.foreign)],
        "foreign": [entity_value(name_principal(name)) for name in case.foreign],
        **render_time(now, read_zone(case.timezone)),
        **render_budgets(case.calls_left, case.tokens_left, case.dollars_left),
    }
    if action == LIST:
        return CallFacts(caller, resource, action)
    return CallFacts(caller, resource, action, case.arguments, context, case.origin or case.caller)
