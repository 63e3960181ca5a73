"""The hub's skills about policies: what they decide about a call, and whether they fit the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from retinue.approvals.records import SCOPE
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Call, Principal, new_id
from retinue.core.errors import InsufficientScopeError, UnknownSkillError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import Lookup
from retinue.mesh.permissions import Access

if TYPE_CHECKING:  # the engine of policies is imported where policies exist
    from retinue.policies.gate import Gate

Json = dict[str, Any]

_PAGE = 200
"""Listings that are read whole while others wait."""


class PolicyBook:
    """The policies of a hub for its callers; ``find_gate`` gives None while there are none."""

    def __init__(
        self, find_gate: Callable[[], Gate | None], lookup: Lookup, directory: Directory, access: Access
    ) -> None:
        self._find_gate = find_gate
        self._lookup = lookup
        self._directory = directory
        self._access = access

    async def explain(self, call: Call, reader: Principal) -> Json:
        """What the policies decide about a call, and which of them concern its skill.

        ``reader`` is told about skills that it could call itself. Raises LookupFailedError for the others.
        """
        gate = self._find_gate()
        view = self._access.view_of(reader)
        candidates = await self._lookup.resolve_skill(call.skill, reader.scopes, agent=call.agent, view=view)
        listing = await self._lookup.open(candidates[0])
        skill = None if listing is None else listing.record.find_skill(call.skill)
        if listing is None or skill is None:
            raise UnknownSkillError(call.skill)
        facts: Json = {"agent": listing.name, "skill": skill.id, "caller": call.principal.id}
        if gate is None:
            return {**facts, "mode": "off", "verdict": "allow", "policies": [], "concerned": []}
        explained = gate.explain(call, listing, skill)
        if not _is_owner(reader):
            # where the owner keeps policies is nobody else's business
            explained["concerned"] = [
                {key: value for key, value in row.items() if key != "file"} for row in explained["concerned"]
            ]
        return {**facts, **explained}

    def list_all(self) -> Json:
        """The policies in force, with what each has decided since this process started."""
        gate = self._find_gate()
        if gate is None:
            return {"mode": "off", "policies": []}
        policies = gate.engine.policies
        return {
            "mode": gate.mode,
            "default": policies.default,
            "digest": policies.digest,
            "policies": gate.list_policies(),
        }

    async def check(self, files: Mapping[str, str], groups: Mapping[str, list[str]]) -> Json:
        """What of these policies does not fit the mesh, as findings with policy and problem.

        Raises InvalidSettingError for policies that are not valid.
        """
        from retinue.policies.fitting import MeshFit
        from retinue.policies.policy_set import load_policies

        policies = load_policies(files, groups=groups)
        fit = MeshFit(policies)
        own = await self._lookup.resolve_skill("call_skill", frozenset({"mesh"}))
        if (listing := await self._lookup.open(own[0])) is not None:
            fit.add(listing)
        await self._directory.ensure_fresh()
        async for page in self._directory.iterate_pages():
            for start in range(0, len(page), _PAGE):
                for one in self._directory.open_all(page[start : start + _PAGE]):
                    fit.add(one)
                await asyncio.sleep(0)
        findings = [{"policy": finding.policy, "problem": finding.problem} for finding in fit.list_findings()]
        return {"policies": len(policies.policies), "digest": policies.digest, "findings": findings}


def add_policy_skills(agent: Agent, book: PolicyBook) -> None:
    """Add the skills to the hub's agent."""

    @agent.skill(read_only=True, listed=False)
    async def explain_policies(
        skill: str,
        ctx: Context,
        agent: str | None = None,
        arguments: Annotated[Json | None, Field(description="Default: none")] = None,
        caller: Annotated[
            str | None, Field(description="The id of another caller; needs the scope approves")
        ] = None,
    ) -> Json:
        """Tells what the policies decide about a call, without making it: verdict, policies and why."""
        principal = ctx.principal
        if caller is not None and caller != principal.id:
            _check_owner(principal)
            principal = Principal(caller, "mesh", principal.scopes - {SCOPE})
        call = Call(new_id(), skill, arguments or {}, principal, "execute", ctx.trace, agent=agent)
        return await book.explain(call, ctx.principal)

    @agent.skill(read_only=True, listed=False)
    async def list_policies(ctx: Context) -> Json:
        """Lists the policies in force, and how often each has decided since the hub started."""
        _check_owner(ctx.principal)
        return book.list_all()

    @agent.skill(read_only=True, listed=False)
    async def check_policies(
        files: Annotated[dict[str, str], Field(description="Cedar texts by the names of their files")],
        ctx: Context,
        groups: dict[str, list[str]] | None = None,
    ) -> Json:
        """Checks policies against the skills of this mesh: unknown names, arguments of other types."""
        _check_owner(ctx.principal)
        return await book.check(files, groups or {})


def _is_owner(principal: Principal) -> bool:
    return SCOPE in principal.scopes or principal.kind == "local"


def _check_owner(principal: Principal) -> None:
    if not _is_owner(principal):
        raise InsufficientScopeError(
            "the policies of others are shown to a holder of the scope approves",
            scopes=(SCOPE,),
            remedy="use the command line of the owner: retinue policy",
        )
