"""Errors of look-ups: a name matches nothing, or several things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinue.core.error_kinds.base import REFUSED, RetinueError


class LookupFailedError(RetinueError):
    """A name matches nothing, or several things; ``unasked`` = the registries that could not be read."""

    type = "not_found"
    kind = REFUSED
    unasked: tuple[str, ...] = ()


def _name_unasked(registries: Sequence[str]) -> str:
    return f" (could not be asked: {', '.join(registries)})" if registries else ""


class UnknownSkillError(LookupFailedError):
    """No visible skill has this id; a hidden skill gives the same error."""

    # P-22; specification 5, doubt 9: hidden and missing are alike

    type = "unknown_skill"

    def __init__(
        self,
        skill: str,
        *,
        near: Sequence[str] = (),
        unasked: Sequence[str] = (),
    ) -> None:
        remedy = (
            f"did you mean {', '.join(near)}?" if near else "search with find_skills, or with: retinue find"
        )
        super().__init__(f"Unknown skill: {skill}", remedy=remedy + _name_unasked(unasked))
        self.skill = skill
        self.near = tuple(near)
        self.unasked = tuple(unasked)

    @property
    def data(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        if self.near:
            facts["near"] = list(self.near)
        if self.unasked:
            facts["registries_not_asked"] = list(self.unasked)
        return facts


class SkillNotOfferedError(UnknownSkillError):
    """No agent of the directory offers the skill."""

    # P-01

    type = "skill_not_offered"


class UnknownAgentError(LookupFailedError):
    """No agent of this name is visible."""

    type = "unknown_agent"

    def __init__(self, name: str, *, near: Sequence[str] = (), unasked: Sequence[str] = ()) -> None:
        remedy = (
            f"did you mean {', '.join(near)}?"
            if near
            else "list them with list_agents, or with: retinue agents"
        )
        super().__init__(f"Unknown agent: {name}", remedy=remedy + _name_unasked(unasked))
        self.name = name
        self.near = tuple(near)
        self.unasked = tuple(unasked)

    @property
    def data(self) -> dict[str, Any]:
        return {"registries_not_asked": list(self.unasked)} if self.unasked else {}


class UnknownRunError(LookupFailedError):
    """No run has this id."""

    type = "unknown_run"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"Unknown run: {run_id}", remedy="list them: retinue runs")
        self.run_id = run_id


class UnknownApprovalError(LookupFailedError):
    """No approval has this id."""

    type = "unknown_approval"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"Unknown approval: {approval_id[:80]}", remedy="list them: retinue approvals")
        self.approval_id = approval_id


class UnknownScheduleError(LookupFailedError):
    """No schedule has this name."""

    type = "unknown_schedule"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown schedule: {name[:80]}", remedy="list them: retinue schedules")
        self.name = name


class UnknownWebhookError(LookupFailedError):
    """No workflow is started by requests at this address."""

    type = "unknown_webhook"

    def __init__(self) -> None:
        # it does not repeat the address, which nobody is to guess
        super().__init__("Unknown webhook", remedy="its owner finds the address with: retinue schedules")


class UnknownArtifactError(LookupFailedError):
    """No artifact with this digest is stored, or it was deleted."""

    type = "unknown_artifact"

    def __init__(self, digest: str, *, remedy: str = "") -> None:
        super().__init__(
            f"Unknown artifact: {digest}",
            remedy=remedy or "save it again; what nothing holds is deleted after artifacts.keep_days",
        )
        self.digest = digest


class UnknownStepError(LookupFailedError):
    """A run or its definition has no step of this path."""

    type = "unknown_step"

    def __init__(self, step: str, *, known: Sequence[str] = ()) -> None:
        remedy = f"there are: {', '.join(known)}" if known else "list them: retinue runs ID"
        super().__init__(f"Unknown step: {step}", remedy=remedy)
        self.step = step


class UnknownWorkflowError(LookupFailedError):
    """No workflow has this name."""

    type = "unknown_workflow"

    def __init__(self, name: str, *, near: Sequence[str] = (), remedy: str = "") -> None:
        default = f"did you mean {', '.join(near)}?" if near else "list them: retinue workflows"
        super().__init__(f"Unknown workflow: {name}", remedy=remedy or default)
        self.name = name
        self.near = tuple(near)


class UnknownTokenError(LookupFailedError):
    """No token has this id."""

    type = "unknown_token"

    def __init__(self, token_id: str, *, near: Sequence[str] = ()) -> None:
        remedy = f"did you mean {', '.join(near)}?" if near else "list them: retinue token list"
        super().__init__(f"Unknown token: {token_id}", remedy=remedy)
        self.token_id = token_id
        self.near = tuple(near)


class UnknownRoleError(LookupFailedError):
    """There is no role of this name."""

    # specification 7.3

    type = "unknown_role"

    def __init__(self, role: str, known: Sequence[str]) -> None:
        super().__init__(f"Unknown role: {role}", remedy=f"there are: {', '.join(known)}")
        self.role = role


class RoleNotOfferedError(LookupFailedError):
    """No agent, or not the named one, has a visible skill with this role."""

    type = "role_not_offered"

    def __init__(self, role: str, agent: str | None = None) -> None:
        who = "No available agent has" if agent is None else f"Agent {agent} does not have"
        remedy = f"list the agents with the role: retinue agents --role {role}"
        super().__init__(f"{who} the role {role}", remedy=remedy)
        self.role = role
        self.agent = agent


class NoModelError(RoleNotOfferedError):
    """No agent can take the request: none has the role, or the caller may call none of them."""

    type = "no_model"

    def __init__(self, role: str, missing: str = "", others: Sequence[str] = ()) -> None:
        super().__init__(role)
        if missing:
            self.message += f" ({missing})"
        if others:
            self.message += f"; there are: {', '.join(others)}"
        self.args = (self.message,)
        self.remedy = (
            "configure a model: set ANTHROPIC_API_KEY, GEMINI_API_KEY or OPENAI_API_KEY for the hub, or "
            "install the command claude, gemini or codex; retinue doctor tells what is missing"
        )


class NobodyWillingError(LookupFailedError):
    """No agent that was asked before a step said that it can do it now."""

    type = "nobody_willing"

    def __init__(self, target: str, said: Sequence[str]) -> None:
        replies = "; ".join(said[:5]) + (f"; and {len(said) - 5} more" if len(said) > 5 else "")
        super().__init__(
            f"no agent said that it can do {target} now ({replies})",
            remedy="run the step without ask, try again later, or see: retinue ask --all --capabilities "
            + target,
        )
        self.target = target


class UnknownResourceError(LookupFailedError):
    """No visible resource has this uri; a hidden one gives the same error."""

    type = "unknown_resource"

    def __init__(self, uri: str) -> None:
        super().__init__(f"Unknown resource: {uri}")
        self.uri = uri

    @property
    def data(self) -> dict[str, Any]:
        return {"uri": self.uri}


class UnknownPromptError(LookupFailedError):
    """No visible prompt has this name; a hidden one gives the same error."""

    type = "unknown_prompt"

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown prompt: {name}")
        self.name = name


class AmbiguousNameError(LookupFailedError):
    """A name matches several things, and nothing decides between them."""

    type = "ambiguous_name"

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        super().__init__(f"Ambiguous name: {name}", remedy=f"use one of: {', '.join(candidates)}")
        self.name = name
        self.candidates = tuple(candidates)

    @property
    def data(self) -> dict[str, Any]:
        return {"candidates": list(self.candidates)}


class VersionConflictError(LookupFailedError):
    """The skill or agent exists, but in no version of the requested range."""

    type = "version_conflict"

    def __init__(self, name: str, wanted: str, offered: Sequence[str] = ()) -> None:
        super().__init__(
            f"No version of {name} fits {wanted}", remedy=f"offered: {', '.join(offered) or 'none'}"
        )
        self.wanted = wanted
        self.offered = tuple(offered)

    @property
    def data(self) -> dict[str, Any]:
        return {"wanted": self.wanted, "offered": list(self.offered)}
