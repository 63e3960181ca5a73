"""Checks each call and read of a process against its policies, before the skill or the source runs.

A process of the mesh that has checked a call notes it in the signed trace of the call, so that the next
process does not decide again: there an approval would be used twice, and the caller has another kind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from functools import partial
from itertools import product
from typing import Any, Literal

from retinue.approvals.records import SCOPE, Approval, ApprovalStore
from retinue.core.allowance import Allowance
from retinue.core.call import LOCAL, Call, Principal, TraceContext
from retinue.core.errors import PolicyDeniedError
from retinue.core.record import HUB_NAME, LOCAL_SOURCE, Candidate, Item, Listing, Prompt, Skill
from retinue.core.record import Resource as ReadableResource
from retinue.core.usage import NO_SOURCES, UNKNOWN_SOURCE, Sources
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.dispatch import Approve, Guards, PermittedCall
from retinue.mesh.guard.call_marks import find_origin, is_permitted, mark_permitted, note_origin
from retinue.mesh.guard.sources import read_trace, with_sources
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.permissions import ListFilter
from retinue.policies.approving import AskClient, CallQuestion, describe
from retinue.policies.asking import AskingPolicies, AskingSkills
from retinue.policies.caller_groups import CallerGroups
from retinue.policies.counts import CallCounts, MemoryCounts, PolicyLimits, make_count
from retinue.policies.decision import CallFacts, Decision, Engine, RunInThread
from retinue.policies.decision_figures import DecisionFigures
from retinue.policies.entities import (
    ADD_IMPORT,
    AGENT,
    ANSWER,
    APPROVAL,
    ARTIFACT,
    CALL,
    GET_PROMPT,
    IMPORT,
    PUBLISH,
    READ,
    START,
    WORKFLOW,
    Caller,
    Resource,
    entity_value,
    name_principal,
    normalize,
    render_budgets,
    render_time,
)
from retinue.policies.lists import ListDecisions
from retinue.policies.obligations import CountedBy
from retinue.policies.policy_set import Policy
from retinue.policies.reads import EntityId
from retinue.policies.recording import InputRecorder

Mode = Literal["off", "watch", "enforce"]

OWNERS_SKILLS = frozenset(
    {"answer_approval", "approve_similar", "list_approvals", "show_approval", "list_policies"}
    | {"check_policies", "explain_policies", "replay_policies", "suggest_policies", "set_policy_mode"}
)
"""Skills of the hub that a holder of the scope ``approves`` may always call, so that nobody is locked out."""

_NOBODY = NullChannel()
"""The channel of a call whose client asks no person."""

_REMEDY = "ask the owner of this mesh; retinue policy explain shows which policies decide"


@dataclass(slots=True)
class Gate:
    """The policies of one process; ``engine`` is replaced as a whole when files have changed.

    ``open_approvals`` opens the store of approvals, None in a process that keeps none. ``open_counts`` opens
    the counts of calls that all processes share; where it is None, calls are counted in ``counts``.
    ``recorder`` keeps what policies read, None where the owner does not want it.
    ``ask_client`` asks the client of a call that needs a person, None where clients are not asked.
    ``run_in_thread`` calls functions that take long, None where they may hold up other calls.
    ``team`` is that of the agents of this process, "" for none.
    ``find_digest`` tells the digest of the policies that are in force in the process now, None where this
    gate is never replaced.
    """

    engine: Engine
    mode: Mode = "enforce"
    open_approvals: Callable[[], Awaitable[ApprovalStore]] | None = None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    counts: CallCounts = field(default_factory=MemoryCounts)
    open_counts: Callable[[], Awaitable[CallCounts]] | None = None
    zone: tzinfo = UTC
    recorder: InputRecorder | None = None
    figures: DecisionFigures = field(default_factory=DecisionFigures)
    groups: CallerGroups = field(default_factory=CallerGroups)
    ask_client: AskClient | None = None
    find_digest: Callable[[], str] | None = None
    run_in_thread: RunInThread | None = None
    team: str = ""
    _lists: ListDecisions | None = None
    _asking: AskingPolicies | None = None

    async def check(
        self,
        call: Call,
        listing: Listing,
        skill: Skill,
        admitted: AdmittedCall,
        channel: Channel = _NOBODY,
    ) -> PermittedCall:
        """Let a call pass that no rule denies; raises PolicyDeniedError."""
        if _is_owners(call, listing):
            return PermittedCall()
        return await self._check(call, listing, skill, CALL, admitted, channel)

    async def check_read(
        self,
        call: Call,
        listing: Listing,
        item: ReadableResource | Prompt,
        admitted: AdmittedCall,
        channel: Channel = _NOBODY,
    ) -> PermittedCall:
        """The same for a read of a resource or a prompt, or of a completion of its arguments."""
        action = GET_PROMPT if isinstance(item, Prompt) else READ
        return await self._check(call, listing, item, action, admitted, channel)

    async def _check(
        self,
        call: Call,
        listing: Listing,
        item: Item,
        action: EntityId,
        admitted: AdmittedCall,
        channel: Channel,
    ) -> PermittedCall:
        engine, mode, name = self.engine, self.mode, name_item(item)
        if mode == "off" or not engine.policies.decides:
            return PermittedCall()
        if is_permitted(call.trace, engine.policies.digest, listing.name, name):
            return PermittedCall()
        resource = self._name_item(listing, item)
        if engine.is_large and self.run_in_thread is not None:
            await engine.prepare(resource, action, self._name_all(call.principal), self.run_in_thread)
        if self.recorder is not None and action == CALL:
            self.recorder.record(engine, call, resource, self._name_all(call.principal))
        decide = partial(self._decide, engine, call, resource, action, channel)
        decision = decide()
        self.figures.count(decision, is_watched=mode == "watch")
        if mode == "watch":
            admitted.trace = self._note(note_origin(admitted.trace, find_origin(call)), call)
            is_allowed = decision.verdict == "allow"
            return PermittedCall(None if is_allowed else self._render(decision, watched=True))
        if decision.verdict == "deny":
            # tells the audit that policies denied the call, and neither a guard nor a person
            admitted.policy = self._render(decision, watched=False)
            raise deny(decision, listing.name, name)
        admitted.policy = None
        permitted = self._oblige(decision, call, listing, item, name, decide)
        marked = mark_permitted(admitted.trace, engine.policies.digest, listing.name, name, find_origin(call))
        admitted.trace = self._note(marked, call)
        return permitted

    def _name_item(self, listing: Listing, item: Item) -> Resource:
        """The item as policies see it; the listing of an agent of this process does not name its team."""
        resource = Resource.of(listing, item)
        is_own = self.team and listing.source == LOCAL_SOURCE
        return replace(resource, team=self.team) if is_own else resource

    def _note(self, trace: TraceContext, call: Call) -> TraceContext:
        """The trace with the sources of the chain, where policies read them."""
        return with_sources(trace, find_sources(call)) if self.engine.reads_sources else trace

    def check_publish(self, principal: Principal, repository: str) -> None:
        """Raise PolicyDeniedError where a policy forbids that a principal pushes to a repository."""
        name = normalize(repository)
        resource = Resource(EntityId(ARTIFACT, name), EntityId(AGENT, ""), (), (("name", name),))
        self._check_owner_action(principal, PUBLISH, resource, f"publish of {repository}")

    def check_answer(self, principal: Principal, agent: str, skill: str) -> None:
        """Raise PolicyDeniedError where a policy forbids that a principal answers about calls of a skill.

        The owner may always answer.
        """
        if principal.kind == "local" or principal.id == "local":
            return
        name, owner = normalize(skill), EntityId(AGENT, normalize(agent))
        approval = EntityId(APPROVAL, f"{owner.id.replace('/', '%2F')}/{name}")
        resource = Resource(approval, owner, (owner,), (("name", name),))
        self._check_owner_action(principal, ANSWER, resource, f"answer about {agent}/{skill}")

    def check_import(self, name: str, kind: str, place: str) -> None:
        """Raise PolicyDeniedError where a policy forbids that the owner imports a server, an API or an agent.

        ``kind`` is ``mcp``, ``openapi`` or ``a2a``, and ``place`` its URL, file or command.
        """
        attributes = (("name", normalize(name)), ("kind", kind), ("place", normalize(place)))
        resource = Resource(EntityId(IMPORT, normalize(name)), EntityId(AGENT, ""), (), attributes)
        self._check_owner_action(LOCAL, ADD_IMPORT, resource, f"import of {name}")

    def check_start(self, principal: Principal, workflow: str, is_inline: bool) -> None:
        """Raise PolicyDeniedError where a policy forbids that a principal starts a run of a workflow."""
        attributes = (("name", normalize(workflow)), ("inline", is_inline))
        resource = Resource(EntityId(WORKFLOW, normalize(workflow)), EntityId(AGENT, ""), (), attributes)
        self._check_owner_action(principal, START, resource, f"start of {workflow}")

    def may_answer(self, principal: Principal, agent: str, skill: str) -> bool:
        """Whether `check_answer` lets a principal answer."""
        try:
            self.check_answer(principal, agent, skill)
        except PolicyDeniedError:
            return False
        return True

    def _check_owner_action(
        self, principal: Principal, action: EntityId, resource: Resource, what: str
    ) -> None:
        """Decide by the forbids that name the action alone; without one it is permitted."""
        engine = self.engine
        policies = [] if self.mode == "off" else engine.select(resource, action)
        for caller, policy in product(self._name_all(principal), policies):
            decision = engine.decide_by([policy], CallFacts(caller, resource, action), permits=True)
            if decision.verdict != "deny":
                continue
            is_watched = self.mode == "watch" or policy.is_watched
            self.figures.count(replace(decision, policies=(policy,)), is_watched=is_watched)
            if not is_watched:
                raise refuse(decision, what)

    def list_policies(self) -> list[dict[str, Any]]:
        """Each policy with what it has decided in this process, for the owner."""
        rows = []
        for policy in self.engine.policies.policies:
            hits = {
                verdict: count for (name, verdict), count in self.figures.hits.items() if name == policy.id
            }
            row = {**_describe_policy(policy), "hits": hits}
            rows.append({**row, "approvers": list(policy.approvers)} if policy.approvers else row)
        return rows

    def _oblige(
        self,
        decision: Decision,
        call: Call,
        listing: Listing,
        item: Item,
        name: str,
        decide: Callable[[], Decision],
    ) -> PermittedCall:
        """What the obligations of a permitted call ask for; ``decide`` decides about it once more."""
        note = None if decision.would_be is None else self._render(decision.would_be, watched=True)
        answers = decision.select("approved")
        if decision.verdict == "allow" and not answers:
            return PermittedCall(note)
        note = self._render(decision, watched=False)
        if answers:
            note["by"] = answers[0].by
        if decision.verdict == "allow":
            return PermittedCall(note)
        limits: PolicyLimits | None = None
        if limiting := decision.select("limit"):
            limits = self._make_limits(limiting, call, f"{listing.name}/{name}")
            if self.open_counts is None:
                note["counted_by"] = "this process"
        approve: Approve | None = None
        if decision.verdict == "approve":
            approve = self._bind_approval(decision, call, listing, name, note, decide)
        masking = tuple(policy for policy in decision.select("redact") if policy.redaction is not None)
        return PermittedCall(note, approve, partial(_mask, masking, item) if masking else None, limits)

    def _make_limits(self, policies: tuple[Policy, ...], call: Call, what: str) -> PolicyLimits:
        """The limits of the call by these policies."""
        facts: dict[CountedBy, str] = {
            "principal": call.principal.id,
            "origin": find_origin(call),
            "skill": what,
        }
        counts = {
            make_count(policy, facts): (
                f"{what} is limited to {'' if policy.limit is None else policy.limit.text}: "
                f"{describe((policy,))}"
            )
            for policy in policies
        }
        return PolicyLimits(self.open_counts or self._open_own_counts, counts)

    async def _open_own_counts(self) -> CallCounts:
        return self.counts

    def redacts(self, agent: str) -> bool:
        """Whether the values of calls of an agent may be masked, so that they must be read."""
        return self.mode == "enforce" and self.engine.masks(agent)

    def _decide(
        self,
        engine: Engine,
        call: Call,
        resource: Resource,
        action: EntityId = CALL,
        channel: Channel = _NOBODY,
    ) -> Decision:
        """The decision; a call that an agent makes for its caller must be permitted to both."""
        caller, *agents = self._name_all(call.principal)
        decision = self._decide_for(engine, call, resource, caller, action, channel)
        if decision.verdict == "deny" or not agents:
            return decision
        return decision.combine(self._decide_for(engine, call, resource, agents[0], action, channel))

    def _decide_for(
        self,
        engine: Engine,
        call: Call,
        resource: Resource,
        caller: Caller,
        action: EntityId,
        channel: Channel,
    ) -> Decision:
        names = engine.reads_of(resource, action, caller)
        is_direct = not call.principal.through
        if not names:
            return engine.decide(CallFacts(caller, resource, action, call.arguments, is_direct=is_direct))
        origin = find_origin(call) if "origin" in names else None
        context = self._find_facts(call, names)
        if "can_ask" in names:
            context["can_ask"] = "elicitation" in channel.capabilities
        groups = self.groups.find_named(origin) if origin else ()
        facts = CallFacts(caller, resource, action, call.arguments, context, origin, groups, is_direct)
        return engine.decide(facts)

    def _name(self, principal: Principal) -> Caller:
        return Caller.of(principal, self.groups.find(principal))

    def _name_all(self, principal: Principal) -> tuple[Caller, ...]:
        """The caller, and the agent that calls for it, both of which must be permitted."""
        caller = self._name(principal)
        if not principal.through:
            return (caller,)
        return caller, self._name(replace(principal, id=principal.through, through=""))

    def filter_lists(self, principal: Principal) -> ListFilter | None:
        """The filter of the policies for the lists of a principal; None if they leave out nothing."""
        if self.mode != "enforce" or not self.engine.narrows_lists:
            return None
        if self._lists is None or self._lists.engine is not self.engine:
            self._lists = ListDecisions(self.engine)
        return ListedItems(self._name_all(principal), self._lists)

    def note_lists(self, principal: Principal) -> AskingSkills | None:
        """Which skills lists tell to ask a person; None where no policy asks whatever the arguments are."""
        if self.mode != "enforce":
            return None
        if self._asking is None or self._asking.engine is not self.engine:
            self._asking = AskingPolicies.of(self.engine)
        return AskingSkills(self._name_all(principal), self._asking) if self._asking.policies else None

    def forget(self) -> None:
        """Drop what is kept for decisions, because lists that were made keep a replaced gate alive."""
        for kept in (self.engine, self._lists, self._asking):
            if kept is not None:
                kept.forget()

    def explain(self, call: Call, listing: Listing, skill: Skill) -> dict[str, Any]:
        """What the policies decide about a call that is not made, and the policies that concern its skill.

        ``without`` is what the call would be without the policies that decide, and ``values`` of a policy are
        the arguments that it reads, as they are in the call.
        """
        resource = self._name_item(listing, skill)
        decision = self._decide(self.engine, call, resource)
        decides = {policy.id for policy in decision.policies}
        row: dict[str, Any] = {
            "mode": self.mode,
            "verdict": decision.verdict,
            "policies": [policy.id for policy in decision.policies],
            "digest": self.engine.policies.digest,
            "concerned": [
                {
                    **_describe_policy(policy),
                    "decides": policy.id in decides,
                    "values": _read_values(policy, call.arguments),
                }
                for policy in self.engine.select(resource, CALL, self._name(call.principal))
            ],
        }
        if decision.would_be is not None:
            row["would_be"] = self._render(decision.would_be, watched=True)
        if decides:
            policies = self.engine.policies
            others = tuple(policy for policy in policies.policies if policy.id not in decides)
            other = self._decide(Engine(replace(policies, policies=others)), call, resource)
            row["without"] = {"verdict": other.verdict, "policies": [policy.id for policy in other.policies]}
        return {**row, "problem": decision.problem} if decision.problem else row

    def _find_facts(self, call: Call, names: frozenset[str]) -> dict[str, Any]:
        """The attributes of the context that policies read."""
        trace, facts = call.trace, dict[str, Any]()
        if "endpoint" in names:
            facts["endpoint"] = call.endpoint
        if "now" in names:
            now = self.clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            facts["now"] = {"__extn": {"fn": "datetime", "arg": now}}
        if "depth" in names:
            facts["depth"] = trace.depth
        if "chain" in names:
            facts["chain"] = [entity_value(name_principal(hop.agent)) for hop in trace.path]
        if "trusted" in names:
            facts["trusted"] = trace.trusted
        if "run" in names:
            facts["run"] = call.principal.kind == "run"
        if not names.isdisjoint(("sources", "foreign")):
            facts |= _render_sources(find_sources(call))
        if not names.isdisjoint(("hour", "weekday")):
            facts |= render_time(self.clock(), self.zone)
        if not names.isdisjoint(("calls_left", "tokens_left", "dollars_left")):
            left = trace.allowance or Allowance()
            facts |= render_budgets(trace.calls_left, left.tokens, left.dollars)
        return facts

    def _render(self, decision: Decision, *, watched: bool) -> dict[str, Any]:
        row: dict[str, Any] = {
            "verdict": decision.verdict,
            "ids": [policy.id for policy in decision.policies],
            "digest": self.engine.policies.digest,
            "watched": watched,
        }
        return {**row, "problem": decision.problem} if decision.problem else row

    def _bind_approval(
        self,
        decision: Decision,
        call: Call,
        listing: Listing,
        name: str,
        note: Mapping[str, Any],
        decide: Callable[[], Decision],
    ) -> Approve:
        """What uses the yes of a person for this call; raises PolicyDeniedError where nobody can be asked."""
        asking, digest = decision.select("approve"), self.engine.policies.digest
        if self.open_approvals is None:
            raise PolicyDeniedError(
                f"{listing.name}/{name} needs the approval of a person, and this process cannot ask",
                policies=[policy.id for policy in asking],
                remedy="call it through the hub, which keeps approvals",
            )
        question = CallQuestion.of(call, listing, name, asking, digest, note)
        may_answer = self.ask_client is not None and self.may_answer(call.principal, listing.name, name)

        async def ask_client(
            channel: Channel, store: ApprovalStore, approval: Approval, call: Call, names_caller: bool
        ) -> Approval:
            """Ask the client, or let it wait, and look whether the policies still permit the call."""
            assert self.ask_client is not None
            answered = await self.ask_client(channel, store, approval, call, names_caller and may_answer)
            if answered.state == "approved":
                self._check_again(f"{listing.name}/{name}", digest, decide())
            return answered

        return partial(question.use_answer, self.open_approvals, ask_client if self.ask_client else None)

    def _check_again(self, what: str, digest: str, decision: Decision) -> None:
        """Raise PolicyDeniedError where policies have changed, or deny by now, after a call has waited."""
        if digest != (self.engine.policies.digest if self.find_digest is None else self.find_digest()):
            raise PolicyDeniedError(
                f"{what} waited for a person, and the policies have changed meanwhile",
                remedy="send the call again, which asks by the policies of now",
            )
        if decision.verdict == "deny":
            raise refuse(decision, what)


def _mask(policies: tuple[Policy, ...], item: Item, guards: Guards | None) -> Guards:
    """The guards of a process with those that mask what the policies say."""
    # imported here, because most calls are not masked
    from retinue.guards.call_guards import CallGuards, GuardRule
    from retinue.guards.guard import MaskGuard

    schemas = (item.input_schema, item.output_schema) if isinstance(item, Skill) else (None, None)
    rules = [
        GuardRule(policy.id, MaskGuard(policy.redaction.arguments, policy.redaction.results, *schemas))
        for policy in policies
        if policy.redaction is not None
    ]
    return guards.and_then(rules) if isinstance(guards, CallGuards) else CallGuards(rules)


@dataclass(frozen=True, slots=True)
class ListedItems:
    """What policies leave in the lists of one caller; equal for one caller and set of policies.

    ``callers`` has the agent that calls for it, too, and an item is listed that both may see.
    """

    callers: tuple[Caller, ...]
    decisions: ListDecisions

    def __call__(self, agent: Candidate, item: Item) -> bool:
        return all(self.decisions.decide(caller, agent, item) for caller in self.callers)


def name_item(item: Item) -> str:
    """The name of an item in audit rows, marks and approvals; that of a skill is its id."""
    if isinstance(item, Skill):
        return item.id
    return f"prompt {item.name}" if isinstance(item, Prompt) else f"resource {item.uri}"


def deny(decision: Decision, agent: str, skill: str) -> PolicyDeniedError:
    """The error of a call that policies deny."""
    return refuse(decision, f"{agent}/{skill}")


def refuse(decision: Decision, what: str) -> PolicyDeniedError:
    """The error of ``what`` policies deny: a call, or an action of an owner."""
    names = [policy.id for policy in decision.policies]
    if decision.problem:
        named = f" ({', '.join(names)})" if names else ""
        return PolicyDeniedError(
            f"{what} is denied, because its policies cannot be evaluated: {decision.problem}{named}",
            policies=names,
            remedy=_REMEDY,
        )
    if not names:
        return PolicyDeniedError(f"{what} is denied: no policy permits it", remedy=_REMEDY)
    return PolicyDeniedError(
        f"{what} is denied: {describe(decision.policies)}", policies=names, remedy=_REMEDY
    )


def _describe_policy(policy: Policy) -> dict[str, Any]:
    arguments = [".".join(path) for path in policy.reads.arguments]
    return {
        "id": policy.id,
        "file": policy.file,
        "effect": policy.effect,
        "reason": policy.reason,
        "watched": policy.is_watched,
        **({} if policy.limit is None else {"limit": policy.limit.text}),
        "reads": [*(f"args.{name}" for name in arguments), *sorted(policy.reads.facts)],
    }


def _read_values(policy: Policy, arguments: Any) -> dict[str, Any]:
    """The arguments that a policy reads, by their paths; without those that are absent."""
    values: dict[str, Any] = {}
    for path in policy.reads.arguments:
        value = arguments
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            values[".".join(path)] = value
    return values


def _is_owners(call: Call, listing: Listing) -> bool:
    """Whether the owner answers approvals, which no policy forbids."""
    return (
        call.skill in OWNERS_SKILLS
        and listing.source == LOCAL_SOURCE
        and listing.name == HUB_NAME
        and (SCOPE in call.principal.scopes or call.principal.kind == "local")
    )


def find_sources(call: Call) -> Sources:
    """The sources that the chain of a call has read; none at its begin, unknown if it does not tell."""
    trace = call.trace
    known = read_trace(trace)
    if known is not None:
        return known
    is_begin = trace.depth == 0 or (call.principal.kind == "run" and trace.depth == 1)
    return NO_SOURCES if is_begin else Sources((UNKNOWN_SOURCE,), (UNKNOWN_SOURCE,))


def _render_sources(sources: Sources) -> dict[str, Any]:
    foreign = [entity_value(EntityId(AGENT, normalize(name))) for name in sources.foreign]
    own = [entity_value(EntityId(AGENT, normalize(name))) for name in sources.own]
    known = UNKNOWN_SOURCE not in (*sources.own, *sources.foreign)
    return {"foreign": foreign, "sources": [*own, *foreign]} if known else {"foreign": foreign}
