"""Twins of the dispatcher's ports that do what a test tells them, and calls to send through them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.core.call import ANONYMOUS, Answer, Call, Principal, TraceContext
from retinue.core.errors import AgentUnreachableError, UnknownSkillError
from retinue.core.record import (
    AgentRecord,
    Candidate,
    Endpoint,
    Health,
    Hints,
    Listing,
    ListingKey,
    Skill,
    Visibility,
    is_visible,
)
from retinue.mesh.admission import Admission
from retinue.mesh.channel import Channel
from retinue.mesh.directory.routing import is_named
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.permissions import AgentView

PLAN_INPUT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"requirements": {"type": "string"}},
    "required": ["requirements"],
}
PLAN_OUTPUT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"plan": {"type": "string"}},
    "required": ["plan"],
}

_numbers = itertools.count(1)


@dataclass
class FakeClock:
    """A clock that only a test moves."""

    at: float = 1000.0

    def __call__(self) -> float:
        return self.at

    def pass_time(self, seconds: float) -> None:
        self.at += seconds


def make_skill(
    skill_id: str = "create_plan",
    *,
    visibility: Visibility = "mesh",
    checked: bool = True,
    timeout_s: float | None = None,
    **hints: bool,
) -> Skill:
    """A skill; with ``checked`` it has the schemas of seed 001's create_plan."""
    return Skill(
        skill_id,
        input_schema=PLAN_INPUT if checked else None,
        output_schema=PLAN_OUTPUT if checked else None,
        visibility=visibility,
        hints=Hints(**hints),
        timeout_s=timeout_s,
    )


def make_listing(
    name: str = "plan-agent",
    skill: Skill | None = None,
    *,
    digest: str | None = None,
    url: str | None = None,
    reachable: bool | None = None,
    version: str = "1.0.0",
) -> Listing:
    record = AgentRecord(
        name,
        version=version,
        endpoints=(Endpoint("execute", url or f"http://{name}:8001"),),
        skills=(skill or make_skill(),),
    )
    return Listing(record, "home", f"agents/{name}", digest=digest, reachable=reachable)


def make_call(
    skill: str = "create_plan",
    arguments: Any = None,
    *,
    principal: Principal = ANONYMOUS,
    trace: TraceContext | None = None,
    **fields: Any,
) -> Call:
    return Call(
        id=f"call-{next(_numbers)}",
        skill=skill,
        arguments={"requirements": "a parser"} if arguments is None else arguments,
        principal=principal,
        endpoint=fields.pop("endpoint", "execute"),
        trace=trace or TraceContext(id=""),
        **fields,
    )


@dataclass
class ScriptedLookup:
    """Offers ``listings`` in their order; ``newer`` is what a reread finds; keeps what it was told."""

    listings: list[Listing]
    newer: dict[str, Listing | None] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    async def resolve_skill(
        self,
        skill_id: str,
        scopes: frozenset[str],
        *,
        version_range: str | None = None,
        agent: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Listing, ...]:
        self.told.append(f"resolve {skill_id}")
        found = tuple(
            listing
            for listing in self.listings
            if (agent is None or is_named(listing, agent))
            and (skill := listing.record.find_skill(skill_id)) is not None
            and is_visible(skill.visibility, scopes)
            and (view is None or view(listing.record.name))
        )
        if not found:
            raise UnknownSkillError(skill_id)
        return found

    async def find_offering(
        self,
        listing_id: ListingKey,
        skill_id: str,
        scopes: frozenset[str],
        *,
        view: AgentView | None = None,
    ) -> Listing | None:
        self.told.append(f"find {listing_id.key}")
        found = next((listing for listing in self.listings if listing.id == listing_id), None)
        return found if found is not None and found.record.find_skill(skill_id) is not None else None

    async def open(self, candidate: Candidate) -> Listing | None:
        return candidate if isinstance(candidate, Listing) else None

    async def reread(self, listing: Candidate) -> Listing | None:
        self.told.append(f"reread {listing.name}")
        return self.newer.get(listing.name, await self.open(listing))

    def record_health(self, listing: Candidate, health: Health, reason: str) -> None:
        self.told.append(f"{health} {listing.name}")


@dataclass
class ScriptedInvoker:
    """Does, for each agent by name, what stands in ``acts``: an error to raise, a coroutine
    function to await, or a value to answer; a list of them in turn. Unnamed agents answer a plan."""

    acts: dict[str, Any] = field(default_factory=dict)
    invoked: list[str] = field(default_factory=list)

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        name = listing.record.name
        self.invoked.append(name)
        act = self.acts.get(name, {"plan": "1. read"})
        if isinstance(act, list):
            act = act.pop(0)
        if isinstance(act, BaseException):
            raise act
        return Answer(value=await act(call) if callable(act) else act)


def make_dispatcher(
    *listings: Listing, acts: dict[str, Any] | None = None, **fields: Any
) -> tuple[Dispatcher, ScriptedLookup, ScriptedInvoker]:
    lookup = ScriptedLookup(list(listings) or [make_listing()])
    invoker = ScriptedInvoker(acts or {})
    parts = {part: fields.pop(part) for part in ("guard", "limits", "events") if part in fields}
    dispatcher = Dispatcher(
        "hub",
        lookup,
        lambda _: invoker,
        admission=Admission(**parts),
        health_sink=lookup.record_health,
        **fields,
    )
    return dispatcher, lookup, invoker


def unreachable(name: str, *, sent: bool = False) -> AgentUnreachableError:
    return AgentUnreachableError(name, f"http://{name}:8001", "connection refused", sent=sent)
