"""Calls the hub's skills for a page: reads without an audit row, actions like any other call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from retinue.core.call import Call, Outcome, Principal, TraceContext, new_id
from retinue.core.errors import AccessError, InsufficientScopeError, NotAuthenticatedError, UnknownSkillError
from retinue.core.record import HUB_NAME
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.dispatch import Calls

Json = dict[str, Any]
ENDPOINT = "dashboard"


@dataclass(frozen=True, slots=True)
class HubSkills:
    """The skills of the hub, called with the rights of a visitor.

    ``reads`` makes calls that leave no log line, audit row or event, because a page that is looked at calls
    several skills every second. ``calls`` is the path of every other call.
    """

    calls: Calls
    reads: Calls

    async def read(
        self, principal: Principal, skill: str, arguments: Mapping[str, Any] | None = None
    ) -> Json:
        """The value of one of the hub's skills.

        Raises RetinueError; where only callers of the mesh may read it, NotAuthenticatedError for a visitor
        without a token and InsufficientScopeError for one whose token has not that scope.
        """
        outcome = await self.reads.dispatch(_call(principal, skill, arguments or {}, HUB_NAME))
        if isinstance(outcome.error, UnknownSkillError):
            raise _to_refusal(principal)
        return cast(Json, outcome.get())

    async def act(
        self,
        principal: Principal,
        skill: str,
        arguments: Any,
        agent: str | None = HUB_NAME,
        channel: Channel | None = None,
    ) -> Outcome:
        """The outcome of a skill that a person asked for; a failure is in it."""
        call = _call(principal, skill, arguments, agent)
        return await self.calls.dispatch(call, channel or NullChannel())


def _to_refusal(principal: Principal) -> AccessError:
    if principal.kind == "anonymous":
        return NotAuthenticatedError("this page is for users of the mesh", remedy="sign in")
    scopes = ", ".join(sorted(principal.scopes)) or "none"
    return InsufficientScopeError(
        f"this page needs a token with the scope mesh; {principal.id} has {scopes}",
        scopes=("mesh",),
        remedy="sign in with such a token: retinue token new --scope mesh",
    )


def _call(principal: Principal, skill: str, arguments: Any, agent: str | None) -> Call:
    return Call(
        id=new_id(),
        skill=skill,
        arguments=arguments,
        principal=principal,
        endpoint=ENDPOINT,
        trace=TraceContext(id=""),
        agent=agent,
    )
