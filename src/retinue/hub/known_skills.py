"""The known skills of the mesh, for the checks of a workflow before its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.call import Principal
from retinue.core.errors import LookupFailedError, RetinueError, UnknownSkillError, VersionConflictError
from retinue.mesh.dispatch import Lookup
from retinue.mesh.permissions import Access
from retinue.workflows.caller import Caller
from retinue.workflows.definitions.loading import Loaded
from retinue.workflows.library import WorkflowBundle
from retinue.workflows.preflight import MAX_READ, Finding, FindSkill, KnownSkill, inspect_with_mesh
from retinue.workflows.runs.records import MESH_SCOPES, Origin, Reach


class KnownSkills:
    """Looks skills up as the steps of a caller's run would."""

    def __init__(self, lookup: Lookup, access: Access, caller: Caller | None = None) -> None:
        self._caller = caller
        self._lookup = lookup
        self._access = access

    async def inspect(
        self,
        bundled: WorkflowBundle,
        loaded: Loaded,
        principal: Principal,
        scopes: frozenset[str],
        **options: Any,
    ) -> list[Finding]:
        """The findings of a definition for runs of this caller with these scopes; see `inspect_with_mesh`."""
        find_skill = find_nested = self._find_skill_for(principal, scopes)
        if any(nested.as_mesh for nested in bundled.nested.values()):
            # the mark counts for all workflows that the marked one runs; which these are shows in the run
            find_nested = self._find_skill_for(principal, scopes | MESH_SCOPES)
        reach = Reach(principal.agents, principal.through, principal.send, principal.team)
        caller, origin = self._caller, Origin(scopes, principal.id, reach=reach)

        async def matches_any(pattern: str) -> bool:
            return caller is None or bool(await caller.list_offers([pattern], origin, 1))

        return await inspect_with_mesh(
            loaded,
            bundled.texts,
            find_skill,
            find_nested_skill=find_nested,
            matches_any=matches_any,
            **options,
        )

    def _find_skill_for(self, principal: Principal, scopes: frozenset[str]) -> FindSkill:
        view = self._access.view_of(principal)
        held: dict[tuple[str, str | None, str | None], KnownSkill] = {}

        async def find_skill(skill: str, agent: str | None, version: str | None) -> KnownSkill:
            key = (skill, agent, version)
            if key not in held:
                held[key] = await self._read(
                    skill, scopes, {"agent": agent, "version_range": version, "view": view}
                )
            return held[key]

        return find_skill

    async def _read(self, skill: str, scopes: frozenset[str], narrowing: Mapping[str, Any]) -> KnownSkill:
        try:
            offering = await self._lookup.resolve_skill(skill, scopes, **narrowing)
        except VersionConflictError:
            return KnownSkill()  # the version may be on its way; the step says it
        except LookupFailedError as error:
            # a registry that could not be asked may have it
            is_sure = not (isinstance(error, UnknownSkillError) and error.unasked)
            return KnownSkill(error if is_sure else None)
        except RetinueError:
            return KnownSkill()  # such as an agent that is away: known, though nobody can be asked
        if len(offering) > MAX_READ:
            return KnownSkill()
        listings = [await self._lookup.open(candidate) for candidate in offering]
        skills = [None if listing is None else listing.record.find_skill(skill) for listing in listings]
        return KnownSkill(
            inputs=tuple(None if offered is None else offered.input_schema for offered in skills),
            outputs=tuple(None if offered is None else offered.output_schema for offered in skills),
        )
