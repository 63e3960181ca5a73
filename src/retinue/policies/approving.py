"""Uses the yes of a person for one call that policies ask about, or tells the caller why it has none.

A call of a run has a question of its own, whose id is made of its idempotency key and its digest. So a call
that the run makes again after a crash uses the same yes, and a call whose arguments, agent or policies have
changed asks anew. Calls outside of runs share a question while it is open; each yes runs one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from retinue.approvals.records import CALL_EXPIRES_S, RUN_EXPIRES_S, Approval, ApprovalRequest, ApprovalStore
from retinue.core.call import Call
from retinue.core.errors import ApprovalNeededError, PolicyDeniedError
from retinue.core.record import Listing
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import ApprovedCall
from retinue.policies.policy_set import Policy

OpenApprovals = Callable[[], Awaitable[ApprovalStore]]


@dataclass(frozen=True, slots=True)
class CallQuestion:
    """A call that policies ask about; ``note`` is for its audit row.

    ``key`` is the idempotency key of the call, "" without one. ``run_step`` is the step of a run that makes
    the call, as ``RUN/PATH``, "" outside of runs.
    """

    request: ApprovalRequest
    policies: tuple[Policy, ...]
    note: Mapping[str, Any]
    key: str = ""
    run_step: str = ""

    @classmethod
    def of(
        cls,
        call: Call,
        listing: Listing,
        skill: str,
        policies: tuple[Policy, ...],
        digest: str,
        note: Mapping[str, Any],
    ) -> CallQuestion:
        """The question about a call of ``skill``, or about a read; ``digest`` is that of the policies."""
        run_step = (call.run_step or "") if call.principal.kind == "run" and call.idempotency_key else ""
        run, _, step = run_step.partition("/")
        request = ApprovalRequest(
            caller=call.principal.id,
            scopes=call.principal.scopes,
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
        return cls(request, policies, note, call.idempotency_key or "", run_step)

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

    async def use_answer(self, open_approvals: OpenApprovals, channel: Channel) -> ApprovedCall:
        """Use the yes of a person for one call.

        Raises ApprovalNeededError without an answer, and PolicyDeniedError after a no.
        """
        store = await open_approvals()
        if self.run_step:
            return await self._use_in_run(store)
        approval = await store.ask(self.request, expires_s=self.expires_s)
        if approval.state == "approved":
            # not by the id of the call: a repetition has the same id, and would use the yes twice
            if await store.use(approval.id, approval.digest):
                return self._approve(approval)
            approval = await store.ask(self.request, expires_s=self.expires_s)  # another call has used it
        if approval.state == "denied":
            until = datetime.fromtimestamp(approval.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise self._deny(approval, f"the answer counts until {until}; after that the same call asks anew")
        raise self._ask(approval, "then send the call again")

    async def _use_in_run(self, store: ApprovalStore) -> ApprovedCall:
        name = sha256(f"{self.key}\0{self.request.digest()}".encode()).hexdigest()[:12]
        approval = await store.ask(self.request, expires_s=self.expires_s, approval_id=name)
        if approval.state == "open":
            raise self._ask(approval, "then the run goes on")
        # the call of this key may use it again, because a step is repeated after a crash
        if await store.use(approval.id, self.request.digest(), self.key):
            return self._approve(approval)
        raise self._deny(approval, "start the run again, which asks anew")

    def _approve(self, approval: Approval) -> ApprovedCall:
        return ApprovedCall({**self.note, "approval": approval.id})

    def _ask(self, approval: Approval, then: str) -> ApprovalNeededError:
        return ApprovalNeededError(
            f"{self.what} needs the approval of a person: {self.request.reason} (approval {approval.id})",
            approval=approval.id,
            policies=self.names,
            remedy=f"let a person run: retinue approvals approve {approval.id}; {then}",
            step=self.run_step,
        )

    def _deny(self, approval: Approval, remedy: str) -> PolicyDeniedError:
        if approval.state == "denied":
            comment = f": {approval.comment}" if approval.comment else ""
            problem = f"{self.what} is denied by a person{comment} (approval {approval.id})"
        else:
            problem = f"{self.what} needs the approval of a person, and approval {approval.id} has expired"
        return PolicyDeniedError(problem, policies=self.names, remedy=remedy)


def describe(policies: tuple[Policy, ...]) -> str:
    """The reasons of policies with their ids, for a caller."""
    return "; ".join(f"{policy.reason} ({policy.id})" if policy.reason else policy.id for policy in policies)
