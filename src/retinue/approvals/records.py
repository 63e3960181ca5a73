"""The records of approvals, and the digest that binds an answer to exactly one call.

An approval is *open* until a person answers it. A yes can be used once, by the call that has its digest,
before it expires. An approval that nobody answered in time counts as a no. One that waits in a run counts as
expired while the run has ended, and as open again when the run is resumed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal, Protocol

from retinue.core.errors import InvalidParametersError, InvalidRequestError, Problem, UnknownApprovalError

CALL_EXPIRES_S = 15 * 60.0
"""How long the approval of a call outside of runs can be answered and used."""

RUN_EXPIRES_S = 24 * 3600.0
"""The same for a call of a run, which waits durably."""

MAX_OPEN_PER_CALLER = 100
"""Open approvals of one caller; a further call is refused."""

MAX_COMMENT = 2_000
"""Characters of the comment of an answer."""

TOPIC = "approval/"
"""Beginning of the topic of the signal with which a run gets an answer."""

SCOPE = "approves"
"""The scope of a token whose holder may answer approvals."""

ApprovalState = Literal["open", "approved", "denied", "expired", "used"]
Verdict = Literal["yes", "no"]
NoticeKind = Literal["asked", "reminder", "answered", "expired"]

OF_GUARDS = "of guards"
"""Stands for the digest of policies in the terms of a question of guards."""

MAX_TRIES = 6
"""Deliveries of a notice."""

FIRST_PAUSE_S = 2.0
"""The pause after the first delivery that failed; each further one is four times as long."""

REMINDED_AT = 0.75
"""The part of its time after which an open question is recalled."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One call that a person is asked about.

    ``caller`` is the id of the principal that calls, ``scopes`` are its scopes. ``through`` is the agent that
    calls for it, "" where it calls itself. ``agent``, ``version`` and
    ``skill`` name what would be called, with ``arguments``. ``reason`` says why a person is asked. ``run``
    and ``step`` are those of a run that waits for the answer, "" outside of runs. ``terms`` are further
    facts that the answer depends on, such as the digest of a set of policies. ``approvers`` are lists of
    globs of principals; who answers must be in each, () = anybody with the scope.
    """

    caller: str
    agent: str
    version: str
    skill: str
    arguments: Mapping[str, Any]
    reason: str = ""
    scopes: frozenset[str] = frozenset()
    run: str = ""
    step: str = ""
    terms: str = ""
    approvers: tuple[tuple[str, ...], ...] = ()
    through: str = ""

    @property
    def awaits_signal(self) -> bool:
        """Whether the step of the run waits for a signal; a call that policies ask about reads the store."""
        return bool(self.run) and not self.terms

    @property
    def why_no_rule(self) -> str:
        """Why no policy can answer further questions like this one, "" where one can."""
        if not self.terms:
            return "a step of a run asks, not a policy"
        if self.terms.startswith(f"policies {OF_GUARDS},"):
            return "a guard asks, and a policy does not answer guards"
        if self.skill.startswith(("resource ", "prompt ")):
            return "it is about a read, and a policy for similar calls is about calls of skills"
        if self.through:
            return f"the agent {self.through} calls for the caller, and such calls are approved one by one"
        return ""

    def digest(self) -> str:
        """The digest of the call: equal calls of one caller have equal digests.

        Raises InvalidParametersError for arguments without a canonical form (RFC 8785), such as an integer
        of more than 53 bits, because their digest would differ among programs.
        """
        import rfc8785  # needed by calls that ask only

        facts: dict[str, Any] = {
            "caller": self.caller,
            "scopes": sorted(self.scopes),
            "agent": self.agent,
            "version": self.version,
            "skill": self.skill,
            "arguments": dict(self.arguments),
            "terms": self.terms,
            # without an agent between, the digest is that of releases that did not know of it
            **({"through": self.through} if self.through else {}),
        }
        try:
            return "sha256:" + sha256(rfc8785.dumps(facts)).hexdigest()
        except (rfc8785.CanonicalizationError, RecursionError) as error:
            problem = f"the arguments have no canonical form ({error}), so nobody can approve them"
            raise InvalidParametersError([Problem("arguments", problem)]) from None


@dataclass(frozen=True, slots=True)
class Approval:
    """A question with its answer. Times are seconds since 1970.

    ``by`` is the principal that answered; ``comment`` is what it said, which the caller reads after a no.
    ``used_by`` is the call that used a yes; ``outcome`` is the JSON of its answer, where it is kept.
    ``notices`` are the deliveries by kind: how many ``tries``, and the time of the ``next``, 0 for none.
    """

    id: str
    request: ApprovalRequest
    digest: str
    asked_at: float
    expires_at: float
    state: ApprovalState = "open"
    by: str = ""
    comment: str = ""
    answered_at: float | None = None
    used_by: str = ""
    outcome: Mapping[str, Any] | None = None
    notices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def ask(cls, request: ApprovalRequest, now: float, expires_s: float, approval_id: str = "") -> Approval:
        """A new, open approval."""
        return cls(approval_id or secrets.token_hex(6), request, request.digest(), now, now + expires_s)

    def seen_at(self, now: float) -> Approval:
        """The approval as it counts at a time: an unused one expires."""
        is_over = self.state in ("open", "approved") and now >= self.expires_at
        return replace(self, state="expired") if is_over else self

    def covers(self, digest: str, now: float) -> bool:
        """Whether a further question about a call of this digest is the same one.

        A no counts as long as the question could have been answered.
        """
        is_current = self.state in ("open", "approved", "denied") and now < self.expires_at
        return is_current and self.digest == digest

    def answer(self, verdict: Verdict, by: str, comment: str, now: float) -> Approval:
        """The approval with an answer; raises InvalidRequestError where it is not open any more."""
        state = self.seen_at(now).state
        if state == "expired" and now < self.expires_at:
            raise InvalidRequestError(
                f"approval {self.id} cannot be answered, because its run {self.request.run} has ended",
                remedy=f"resume the run, which waits for the answer then: retinue resume {self.request.run}",
            )
        if state != "open":
            remedy = "let the caller call again, which asks anew" if state in ("expired", "used") else ""
            raise InvalidRequestError(f"approval {self.id} is {state} already", remedy=remedy)
        answered: ApprovalState = "approved" if verdict == "yes" else "denied"
        return replace(self, state=answered, by=by, comment=comment, answered_at=now)

    def use(self, digest: str, user: str, now: float, *, once: bool = False) -> Approval | None:
        """The approval as used by a call; None where it does not permit this one.

        Unless it is used ``once``, the call that used it may do so again, because a step may be repeated
        after a crash.
        """
        if self.digest != digest:
            return None
        if self.state == "used" and user and self.used_by == user and not once:
            return self
        return replace(self, state="used", used_by=user) if self.seen_at(now).state == "approved" else None

    def claim_notice(self, now: float) -> tuple[Approval, Notice] | None:
        """The notice that is due, and the approval on which its delivery is noted; None for none."""
        kind: NoticeKind
        state = self.seen_at(now).state
        if state == "open":
            is_late = now >= self.asked_at + REMINDED_AT * (self.expires_at - self.asked_at)
            kind = "reminder" if is_late and "asked" in self.notices else "asked"
        elif "asked" not in self.notices:
            return None  # nobody was told that it was open
        else:
            kind = "expired" if state == "expired" and self.answered_at is None else "answered"
        noted = self.notices.get(kind, {"tries": 0, "next": now})
        tries = int(noted["tries"]) + 1
        if tries > MAX_TRIES or not noted["next"] or now < noted["next"]:
            return None
        later = {"tries": tries, "next": now + FIRST_PAUSE_S * 4 ** (tries - 1)}
        claimed = replace(self, notices={**self.notices, kind: later})
        return claimed, Notice(self.seen_at(now), kind, tries)

    def settle_notice(self, kind: NoticeKind) -> Approval:
        """The approval with a delivered notice."""
        tries = self.notices.get(kind, {}).get("tries", 1)
        return replace(self, notices={**self.notices, kind: {"tries": tries, "next": 0.0}})

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        request = self.request
        return {
            "id": self.id,
            "digest": self.digest,
            "asked_at": self.asked_at,
            "expires_at": self.expires_at,
            "state": self.state,
            "by": self.by,
            "comment": self.comment,
            "answered_at": self.answered_at,
            "used_by": self.used_by,
            **({} if self.outcome is None else {"outcome": dict(self.outcome)}),
            **({"notices": dict(self.notices)} if self.notices else {}),
            "request": {
                "caller": request.caller,
                "scopes": sorted(request.scopes),
                "agent": request.agent,
                "version": request.version,
                "skill": request.skill,
                "arguments": dict(request.arguments),
                "reason": request.reason,
                "run": request.run,
                "step": request.step,
                "terms": request.terms,
                **({"approvers": [list(globs) for globs in request.approvers]} if request.approvers else {}),
                **({"through": request.through} if request.through else {}),
            },
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Approval:
        """The approval of its stored form; unknown keys are ignored."""
        facts = stored["request"]
        names = ("caller", "agent", "version", "skill", "arguments", "reason", "run", "step", "terms")
        request = ApprovalRequest(
            **{name: facts[name] for name in names},
            scopes=frozenset(facts["scopes"]),
            approvers=tuple(tuple(globs) for globs in facts.get("approvers", ())),
            through=facts.get("through", ""),
        )
        own = ("id", "digest", "asked_at", "expires_at", "state", "by", "comment", "answered_at", "used_by")
        more = {"outcome": stored.get("outcome"), "notices": stored.get("notices", {})}
        return cls(request=request, **{name: stored[name] for name in own}, **more)


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to a chat system about an approval; ``tries`` is the number of this delivery."""

    approval: Approval
    kind: NoticeKind
    tries: int

    @property
    def is_last(self) -> bool:
        return self.tries >= MAX_TRIES


def topic_of(approval_id: str) -> str:
    """The topic of the signal with which a run gets the answer."""
    return f"{TOPIC}{approval_id}"


class ApprovalStore(Protocol):
    """Where approvals are kept: a database, or the memory of a test."""

    async def ask(self, request: ApprovalRequest, *, expires_s: float, approval_id: str = "") -> Approval:
        """Ask for one call; an open, unused or denied approval of an equal call is returned instead.

        A denied one is returned until it would have expired.

        With an ``approval_id``, which a run makes of its step, asking again returns that approval in any
        state. Raises InvalidParametersError, and BusyError for too many open approvals of the caller.
        """

    async def find(self, approval_id: str) -> Approval | None:
        """The approval of an id."""

    async def list_all(self, *, state: ApprovalState | None = None) -> list[Approval]:
        """The approvals, newest first."""

    async def answer(self, approval_id: str, verdict: Verdict, by: str, comment: str = "") -> Approval:
        """Answer an open approval; raises UnknownApprovalError, and InvalidRequestError for an ended one."""

    async def use(self, approval_id: str, digest: str, user: str = "", *, once: bool = False) -> bool:
        """Use a yes for the call of this digest, once; False if it was used, expired or is for another.

        The same ``user``, a step of a run, may use it again, unless it is used ``once``.
        """

    async def find_used(self, digest: str, user: str) -> Approval | None:
        """The approval that the call of this digest has used as ``user``."""

    async def keep_outcome(self, approval_id: str, user: str, outcome: Mapping[str, Any]) -> None:
        """Keep the outcome of the call that used an approval as ``user``."""


class MemoryApprovals:
    """An ApprovalStore in memory, for workflows without a database."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._approvals: dict[str, Approval] = {}

    async def ask(self, request: ApprovalRequest, *, expires_s: float, approval_id: str = "") -> Approval:
        now = self._clock()
        approval = Approval.ask(request, now, expires_s, approval_id)
        for known in self._approvals.values():
            is_equal = not approval_id and known.covers(approval.digest, now)
            if is_equal or known.id == approval_id:
                return known.seen_at(now)
        self._approvals[approval.id] = approval
        return approval

    async def find(self, approval_id: str) -> Approval | None:
        known = self._approvals.get(approval_id)
        return None if known is None else known.seen_at(self._clock())

    async def list_all(self, *, state: ApprovalState | None = None) -> list[Approval]:
        seen = [known.seen_at(self._clock()) for known in reversed(self._approvals.values())]
        return [each for each in seen if state in (None, each.state)]

    async def answer(self, approval_id: str, verdict: Verdict, by: str, comment: str = "") -> Approval:
        known = await self.find(approval_id)
        if known is None:
            raise UnknownApprovalError(approval_id)
        answered = known.answer(verdict, by, comment, self._clock())
        self._approvals[approval_id] = answered
        return answered

    async def use(self, approval_id: str, digest: str, user: str = "", *, once: bool = False) -> bool:
        known = self._approvals.get(approval_id)
        used = None if known is None else known.use(digest, user, self._clock(), once=once)
        if used is not None:
            self._approvals[approval_id] = used
        return used is not None

    async def find_used(self, digest: str, user: str) -> Approval | None:
        used = (known for known in reversed(self._approvals.values()) if known.state == "used")
        return next((known for known in used if (known.digest, known.used_by) == (digest, user)), None)

    async def keep_outcome(self, approval_id: str, user: str, outcome: Mapping[str, Any]) -> None:
        known = self._approvals.get(approval_id)
        if known is not None and known.used_by == user:
            self._approvals[approval_id] = replace(known, outcome=outcome)
