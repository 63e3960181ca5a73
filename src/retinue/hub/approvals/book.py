"""The hub's skills about approvals: list, show and answer the calls that wait for a person.

A caller sees its own calls. A holder of the scope ``approves`` sees all of them and answers them, but not
through an agent or a run: what answers has the token itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from retinue.approvals.records import MAX_COMMENT, SCOPE, Approval, ApprovalState, ApprovalStore, Verdict
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Principal
from retinue.core.errors import (
    InsufficientScopeError,
    InvalidParametersError,
    InvalidRequestError,
    Problem,
    RetinueError,
    StateError,
    UnknownApprovalError,
)
from retinue.mesh.permissions import matches

Json = dict[str, Any]

SIMILAR_S = 8 * 3600.0
"""How long a yes for similar calls counts, unless the approver says otherwise."""

SIMILAR_COMMENT = "also similar calls"
"""The comment of a yes for similar calls."""

LONGEST_SIMILAR_S = 30 * 24 * 3600.0


class ApprovalBook:
    """The approvals of a mesh for callers of the hub; ``exists`` = whether there may be any.

    ``save_rule`` stores the yes for calls like an approval as a policy, ``remove_rule`` removes it.
    ``check_answer`` raises PolicyDeniedError where policies forbid a principal to answer about calls of an
    agent and skill.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[ApprovalStore]],
        *,
        exists: Callable[[], bool] = lambda: True,
        save_rule: Callable[[str, str], Awaitable[None]] | None = None,
        remove_rule: Callable[[str], Awaitable[None]] | None = None,
        check_answer: Callable[[Principal, str, str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_store = open_store
        self._exists = exists
        self._save_rule = save_rule
        self._remove_rule = remove_rule
        self._check_answer = check_answer
        self._clock = clock
        self._saving = asyncio.Lock()

    async def list_all(self, principal: Principal, state: ApprovalState | None) -> list[Json]:
        """The approvals that a caller may see, newest first."""
        if not self._exists():
            return []
        approvals = await (await self._open_store()).list_all(state=state)
        return [render(each, self._clock()) for each in approvals if _may_see(principal, each)]

    async def show(self, principal: Principal, approval_id: str) -> Json:
        """One approval, with the paths of secrets and personal data in its arguments.

        Raises UnknownApprovalError also for one that the caller may not see.
        """
        approval = await (await self._open_store()).find(approval_id) if self._exists() else None
        if approval is None or not _may_see(principal, approval):
            raise UnknownApprovalError(approval_id)
        from retinue.guards.masking import mask_value  # lists do not need it

        row, sensitive = render(approval, self._clock()), mask_value(dict(approval.request.arguments)).paths
        return {**row, "sensitive": list(sensitive)} if sensitive else row

    async def answer(
        self, principal: Principal, approval_id: str, verdict: Verdict, comment: str, *, depth: int
    ) -> Json:
        """Answer an approval; ``depth`` is that of the call in its chain.

        Raises InsufficientScopeError, UnknownApprovalError, and InvalidRequestError for one that has ended.
        """
        store, _ = await self._find_to_answer(principal, approval_id, depth)
        answered = await store.answer(approval_id, verdict, name_of(principal), comment[:MAX_COMMENT])
        return render(answered, self._clock())

    async def approve_similar(
        self,
        principal: Principal,
        approval_id: str,
        free: Collection[str],
        until: str,
        rule: str,
        *,
        depth: int,
    ) -> Json:
        """Approve a call and those like it: without ``rule`` the policy to read, with that policy store it.

        Raises what `answer` raises, and InvalidParametersError for a call that no policy describes.
        """
        _, approval = await self._find_to_answer(principal, approval_id, depth)
        problem = (
            "this process stores no policies" if self._save_rule is None else approval.request.why_no_rule
        )
        if problem or self._save_rule is None:
            raise InvalidRequestError(
                f"no policy can answer calls like that of approval {approval_id}: {problem}",
                remedy=f"answer each call: retinue approvals approve {approval_id}",
            )
        now = self._clock()
        approval.answer("yes", "", "", now)  # raises where it is not open any more
        from retinue.policies.standing_yes import draft_rule  # needed by this answer only

        until = until or _render_time(now + SIMILAR_S)
        _check_until(until, now)
        text = draft_rule(approval, frozenset(free), until, name_of(principal))
        if not rule:
            return {"approval": approval_id, "rule": text, "until": until}
        if rule != text:
            raise InvalidRequestError(
                "the policy is another one than was shown", remedy="read it again: leave out rule"
            )
        save = partial(self._save_rule, approval_id, text)
        saving = asyncio.create_task(self._save_and_answer(save, principal, approval_id, depth), name="yes")
        # a client that disconnects meanwhile would leave a policy without an answer
        row = await asyncio.shield(saving)
        return {**row, "rule": text, "until": until}

    async def _save_and_answer(
        self, save: Callable[[], Awaitable[None]], principal: Principal, approval_id: str, depth: int
    ) -> Json:
        """Store a policy, then say the yes that it is for; the policy stays only with this yes."""
        async with self._saving:
            store, approval = await self._find_to_answer(principal, approval_id, depth)
            approval.answer("yes", "", "", self._clock())  # raises where another request was faster
            # stored first, so that nobody is told a yes for calls that ask again
            await save()
            try:
                return await self.answer(principal, approval_id, "yes", SIMILAR_COMMENT, depth=depth)
            except RetinueError:
                # somebody else has answered meanwhile; the policy of another process has the same name
                if self._remove_rule is not None and not await _has_similar_yes(store, approval_id):
                    await self._remove_rule(approval_id)
                raise

    async def _find_to_answer(
        self, principal: Principal, approval_id: str, depth: int
    ) -> tuple[ApprovalStore, Approval]:
        if not _is_approver(principal) or depth > 0:
            raise InsufficientScopeError(
                "an approval is answered with a token that has the scope approves, not through an agent",
                scopes=(SCOPE,),
                remedy="use the command line of the owner: retinue approvals; or create a token: "
                "retinue token new --scope mesh --scope approves",
            )
        store = await self._open_store() if self._exists() else None
        approval = None if store is None else await store.find(approval_id)
        if store is None or approval is None:
            raise UnknownApprovalError(approval_id)
        _check_approver(principal, approval)
        if self._check_answer is not None:
            self._check_answer(principal, approval.request.agent, approval.request.skill)
        return store, approval


async def _has_similar_yes(store: ApprovalStore, approval_id: str) -> bool:
    """Whether the answer of an approval is a yes for similar calls; False where nobody can tell."""
    try:
        approval = await store.find(approval_id)
    except StateError:
        return False
    return approval is not None and approval.comment == SIMILAR_COMMENT and approval.state != "denied"


def _check_until(until: str, now: float) -> None:
    """Raise InvalidParametersError for another form, and for a time that is past or too far."""
    try:
        at = datetime.strptime(until, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        at = 0.0
    # a time such as 2026-1-2T3:4:5Z is none of Cedar
    if not now < at <= now + LONGEST_SIMILAR_S or _render_time(at) != until:
        problem = "field 'until' is no time within 30 days, such as 2026-11-27T12:00:00Z"
        raise InvalidParametersError([Problem("until", problem)])


def add_approval_skills(agent: Agent, book: ApprovalBook) -> None:
    """Add the skills to the hub's agent."""

    @agent.skill(read_only=True, listed=False)
    async def list_approvals(
        ctx: Context,
        state: Annotated[ApprovalState | None, Field(description="Default: all")] = None,
    ) -> Json:
        """Lists the calls that wait, or waited, for a person."""
        return {"approvals": await book.list_all(ctx.principal, state)}

    @agent.skill(read_only=True, listed=False)
    async def show_approval(approval: str, ctx: Context) -> Json:
        """Shows one call that waits for a person: agent, skill, arguments and why."""
        return await book.show(ctx.principal, approval)

    @agent.skill(listed=False)
    async def answer_approval(approval: str, verdict: Verdict, ctx: Context, comment: str = "") -> Json:
        """Says yes or no to one call; the caller reads the comment of a no."""
        return await book.answer(ctx.principal, approval, verdict, comment, depth=ctx.trace.depth)

    @agent.skill(listed=False)
    async def approve_similar(
        approval: str,
        ctx: Context,
        free: Annotated[list[str] | None, Field(description="Arguments that may differ")] = None,
        until: Annotated[str, Field(description="UTC; default: in 8 hours")] = "",
        rule: Annotated[str, Field(description="The policy as it was shown; without it, it is shown")] = "",
    ) -> Json:
        """Says yes to one call and to calls like it, by a policy that is shown first."""
        return await book.approve_similar(
            ctx.principal, approval, free or (), until, rule, depth=ctx.trace.depth
        )


def render(approval: Approval, now: float) -> Json:
    """The approval as skills return it."""
    request, seen = approval.request, approval.seen_at(now)
    shown: Json = {
        "approval": seen.id,
        "state": seen.state,
        "agent": request.agent,
        "version": request.version,
        "skill": request.skill,
        "arguments": dict(request.arguments),
        "reason": request.reason,
        "caller": request.caller,
        "asked_at": _render_time(seen.asked_at),
        "expires_at": _render_time(seen.expires_at),
    }
    if request.through:
        shown["through"] = request.through
    if request.awaits_signal:
        shown["by_step"] = True
    if not request.why_no_rule:
        shown["by_policy"] = True
    if request.run:
        shown |= {"run": request.run, "step": request.step}
    if seen.answered_at is not None:
        shown |= {"by": seen.by, "comment": seen.comment, "answered_at": _render_time(seen.answered_at)}
    return shown


def name_of(principal: Principal) -> str:
    """The name of an approver in records."""
    return "owner" if principal.id == "local" else principal.id


def _is_approver(principal: Principal) -> bool:
    # a command without a hub is the owner at the terminal: no agent calls with a principal of kind local
    return SCOPE in principal.scopes or principal.kind == "local"


def _check_approver(principal: Principal, approval: Approval) -> None:
    """Raise InsufficientScopeError unless the policies that ask let this principal answer; the owner may."""
    if name_of(principal) == "owner":
        return
    request = approval.request
    if request.approvers:
        names = (principal.id, *(("caller",) if principal.id == request.caller else ()))
        if all(any(matches(name, globs) for name in names) for globs in request.approvers):
            return
        allowed = " and ".join(", ".join(globs) for globs in request.approvers)
        raise InsufficientScopeError(
            f"approval {approval.id} is answered by {allowed}",
            scopes=(SCOPE,),
            remedy="let one of them answer",
        )
    if request.terms and principal.id == request.caller:
        raise InsufficientScopeError(
            f"approval {approval.id} is not answered by the caller itself",
            scopes=(SCOPE,),
            remedy='let another approver answer, or write @approvers("caller") in the policy',
        )


def _may_see(principal: Principal, approval: Approval) -> bool:
    return _is_approver(principal) or principal.id == approval.request.caller


def _render_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
