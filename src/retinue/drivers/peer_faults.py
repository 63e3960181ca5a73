"""What the status of an agent's answer says before anybody reads it, on whichever door it was asked."""

from __future__ import annotations

from retinue.core.errors import AgentUnreachableError, NotAuthenticatedError

_REFUSED = frozenset({401, 403})
_GATEWAY_FAILURES = frozenset({502, 503, 504})


def check_not_refused(agent: str, status: int) -> None:
    """Raises NotAuthenticatedError where the agent does not take this process's token."""
    if status in _REFUSED:
        raise NotAuthenticatedError(
            f"agent {agent} refused the caller ({status})",
            remedy="let its machine join this mesh (retinue token new --join), or see registry.NAME.mesh",
        )


def is_lost(status: int) -> bool:
    """Whether a balancer or proxy has lost the agent behind it; the call may have been there."""
    return status in _GATEWAY_FAILURES


def lost(agent: str, url: str, status: int) -> AgentUnreachableError:
    """The error of an answer that is none of the agent's own."""
    return AgentUnreachableError(agent, url, f"what stands before it answers with status {status}", sent=True)
