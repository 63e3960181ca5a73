"""Uses the yes of a person for one call that policies ask about, or tells the caller why it has none.

A call of a run has a question of its own, whose id is made of its idempotency key and its digest. So a call
that the run makes again after a crash uses the same yes, and a call whose arguments, agent or policies have
changed asks anew. Calls outside of runs share a question while it is open; each yes runs one of them. A call
that is repeated under its idempotency key gets the outcome that is kept with its yes.

The limits of policies count a call after its answer and before its yes is used. So a call that waits takes no
place of a limit, and a call that a limit refuses uses no yes.

The person behind the call is asked itself where all policies that ask name ``caller`` as an approver and its
token has the scope ``approves``. A task of A2A waits for an answer from anywhere.

A call of an exam asks nobody and uses no yes: nobody wants its result, and the yes is for another call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from retinue.approvals.records import (
    CALL_EXPIRES_S,
    RUN_EXPIRES_S,
    Approval,
    ApprovalRequest,
    ApprovalStore,
)
from retinue.core.call import Answer, Call
from retinue.core.errors import (
    ApprovalNeededError,
    PolicyDeniedError,
    StateError,
)
from retinue.core.record import Listing
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import ApprovedCall, PolicyLimits
from retinue.mesh.guard.call_marks import is_of_exam
from retinue.mesh.idempotency import read_answer

if TYPE_CHECKING:  # the engine of policies, which guards do not need
    from retinue.policies.policy_set import Policy

OpenApprovals = Callable[[], Awaitable[ApprovalStore]]

AskClient = Callable[[Channel, ApprovalStore, Approval, Call, bool], Awaitable[Approval]]
"""Asks the client of a call, or lets it wait; the bool tells whether the caller may approve its own call."""

MAX_OUTCOME_BYTES = 64 * 1024
"""An outcome up to this size is kept for repetitions of its call."""


class AskingGuard(NamedTuple):
    """A guard that asks a person about a call, in the place of a policy."""

    id: str
    reason: str
    approvers: tuple[str, ...] = ()
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class CallQuestion:
    """A call that policies ask about; ``note`` is for its audit row.

    ``run_step`` is the step of a run that makes the call, as ``RUN/PATH``, "" outside of runs.
    """

    request: ApprovalRequest
    policies: tuple[Policy, ...] | tuple[AskingGuard, ...]
    note: Mapping[str, Any]
    call: Call
    run_step: str = ""

    @classmethod
    def of(
        cls,
        call: Call,
        listing: Listing,
        skill: str,
        policies: tuple[Policy, ...] | tuple[AskingGuard, ...],
        digest: str,
        note: Mapping[str, Any],
    ) -> CallQuestion:
        """The question about a call of ``skill``, or about a read; ``digest`` is that of the policies."""
        run_step = (call.run_step or "") if call.principal.kind == "run" and call.idempotency_key else ""
        run, _, step = run_step.partition("/")
        request = ApprovalRequest(
            caller=call.principal.id,
            scopes=call.principal.scopes,
            through=call.principal.through,
            agent=listing.name,
            version=listing.version or "",
            skill=skill,
            arguments=call.arguments if isinstance(call.arguments, Mapping) else {"": call.arguments},
            reason=describe(policies),
            run=run,
            step=step,
            approvers=tuple(policy.approvers for policy in policies if policy.approvers),
            terms=f"policies {digest}, listing {listing.digest or ''}",
        )
        return cls(request, policies, note, call, run_step)

    @property
    def what(self) -> str:
        return f"{self.request.agent}/{self.request.skill}"

    @property
    def names(self) -> list[str]:
        return [policy.id for policy in self.policies]

    @property
    def expires_s(self) -> float:
        """How long the question is open, the shortest time of the policies that ask."""
        default_s = RUN_EXPIRES_S if self.run_step else CALL_EXPIRES_S
        return min(policy.expires_s or default_s for policy in self.policies)

    async def use_answer(
        self,
        open_approvals: OpenApprovals,
        ask_client: AskClient | None,
        channel: Channel,
        limits: PolicyLimits | None,
    ) -> ApprovedCall:
        """Use the yes of a person for one call, which its limits count.

        Raises ApprovalNeededError without an answer, PolicyDeniedError after a no and in exams, BusyError.
        """
        if is_of_exam(self.call):
            raise self._refuse_exam()
        store = await open_approvals()
        if self.run_step:
            return await self._use_in_run(store, limits)
        key, digest = self.call.idempotency_key or "", self.request.digest()
        if key and (known := await store.find_used(digest, key)) is not None and known.outcome is not None:
            return ApprovedCall({**self._note_yes(known), "repeated": True}, read_answer(known.outcome))
        if limits is not None:
            await limits.check()  # nobody is asked about a call that does not run
        approval = await store.ask(self.request, expires_s=self.expires_s)
        if approval.state == "open" and ask_client is not None:
            # a program could say yes for its person, so every policy that asks must name the caller
            names_caller = all("caller" in policy.approvers for policy in self.policies)
            approval = await ask_client(channel, store, approval, self.call, names_caller)
        if approval.state == "approved":
            # a repetition of the call may not use the yes again, because its agent may not know the key
            if await self._use(store, approval, limits, once=True):
                keep = partial(_keep_outcome, store, approval.id, key) if key else None
                return ApprovedCall(self._note_yes(approval), keep=keep)
            approval = await store.ask(self.request, expires_s=self.expires_s)  # another call has used it
        if approval.state == "denied":
            until = datetime.fromtimestamp(approval.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise self._deny(approval, f"the answer counts until {until}; after that the same call asks anew")
        raise self._ask(approval, "then send the call again")

    async def _use_in_run(self, store: ApprovalStore, limits: PolicyLimits | None) -> ApprovedCall:
        key, digest = self.call.idempotency_key or "", self.request.digest()
        name = sha256(f"{key}\0{digest}".encode()).hexdigest()[:12]
        if limits is not None:
            await limits.check()
        approval = await store.ask(self.request, expires_s=self.expires_s, approval_id=name)
        if approval.state == "open":
            raise self._ask(approval, "then the run goes on")
        # the call of this key may use it again, because a step is repeated after a crash
        if await self._use(store, approval, limits):
            return ApprovedCall(self._note_yes(approval))
        raise self._deny(approval, "start the run again, which asks anew")

    async def _use(
        self, store: ApprovalStore, approval: Approval, limits: PolicyLimits | None, *, once: bool = False
    ) -> bool:
        """Count the call, then use the yes; a call whose yes is used or expired is not counted."""
        key, digest, is_used = self.call.idempotency_key or "", self.request.digest(), False
        if limits is not None:
            await limits.take()
        try:
            is_used = await store.use(approval.id, digest, key, once=once)
        finally:
            if limits is not None and not is_used:
                await limits.give_back()
        return is_used

    def _note_yes(self, approval: Approval) -> dict[str, Any]:
        return {**self.note, "approval": approval.id, "by": approval.by}

    def _ask(self, approval: Approval, then: str) -> ApprovalNeededError:
        return ApprovalNeededError(
            f"{self.what} needs the approval of a person: {self.request.reason} (approval {approval.id})",
            approval=approval.id,
            policies=self.names,
            remedy=f"let a person run: retinue approvals approve {approval.id}; {then}",
            step=self.run_step,
        )

    def _refuse_exam(self) -> PolicyDeniedError:
        asking = "a guard" if isinstance(self.policies[0], AskingGuard) else "a policy"
        return PolicyDeniedError(
            f"{asking} asks a person about {self.what}, and an exam asks nobody: {self.request.reason}",
            policies=self.names,
            remedy="permit the caller exam this skill, or leave the agent unexamined",
        )

    def _deny(self, approval: Approval, remedy: str) -> PolicyDeniedError:
        if approval.state == "denied":
            comment = f": {approval.comment}" if approval.comment else ""
            problem = f"{self.what} is denied by a person{comment} (approval {approval.id})"
        else:
            problem = f"{self.what} needs the approval of a person, and approval {approval.id} has expired"
        return PolicyDeniedError(problem, policies=self.names, remedy=remedy)


async def _keep_outcome(store: ApprovalStore, approval_id: str, key: str, answer: Answer) -> None:
    """Keep an answer with the yes that it used, for repetitions of the call, if it is small enough."""
    try:
        outcome = orjson.dumps(answer, default=dict)
    except TypeError:
        return
    if len(outcome) <= MAX_OUTCOME_BYTES:
        with suppress(StateError):  # the call has succeeded; a repetition asks anew
            await store.keep_outcome(approval_id, key, orjson.loads(outcome))


def describe(policies: tuple[Policy, ...] | tuple[AskingGuard, ...]) -> str:
    """The reasons of policies with their ids, for a caller."""
    return "; ".join(f"{policy.reason} ({policy.id})" if policy.reason else policy.id for policy in policies)
