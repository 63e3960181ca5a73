"""The hub's skills about policies: what they decide about a call, and whether they fit the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from retinue.approvals.records import SCOPE
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import ANONYMOUS, Call, Principal, new_id
from retinue.core.errors import InsufficientScopeError, UnknownSkillError
from retinue.core.record import Listing
from retinue.hub.agents import RELAYS
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import Lookup
from retinue.mesh.observing.call_facts import USUAL_SCOPES
from retinue.mesh.permissions import Access

if TYPE_CHECKING:  # the engine of policies is imported where policies exist
    from retinue.policies.entities import TeamScope
    from retinue.policies.gate import Gate
    from retinue.policies.history.past_calls import PastCall, SkillKey
    from retinue.policies.history.replay import KnownSkill
    from retinue.policies.policy_set import Default, PolicySet

Json = dict[str, Any]

ReadPast = Callable[[datetime], Iterator[tuple[Mapping[str, Any], Mapping[str, Any] | None]]]
"""The rows of calls that have ended since then, oldest first, with what policies read of their arguments."""

DAY_S = 86_400.0
_TOKEN = "token:"  # noqa: S105 - the beginning of an id
_USUAL_SCOPES = frozenset(USUAL_SCOPES)
_MESH_SCOPES = _USUAL_SCOPES | {"runs_code"}
MAX_SINCE_S = 366 * DAY_S

_PAGE = 200
"""Listings that are read whole while others wait."""


class PastMesh(NamedTuple):
    """What is known of past calls and callers: rows of calls, and what the tokens of a caller say now.

    ``find_groups`` gives the groups that they name, ``find_scopes`` their scopes, None without a valid token.
    """

    read_calls: ReadPast
    find_groups: Callable[[str], tuple[str, ...] | None]
    find_scopes: Callable[[str], frozenset[str] | None] = lambda caller: None


class ModeSwitch(NamedTuple):
    """Reads and sets the mode of the policies of a mesh.

    ``read`` gives the mode, and whether the owner has set it beside the settings. ``set`` sets it for all
    processes, None = what the settings say.
    """

    read: Callable[[], tuple[str, bool]]
    set: Callable[[str | None], Awaitable[None]]


class CurrentPolicies(NamedTuple):
    """The texts of the files in force by their names, and what those of ``teams`` bind."""

    files: Mapping[str, str]
    teams: Mapping[str, TeamScope]


class PolicyBook:
    """The policies of a hub for its callers.

    ``find_gate`` gives None while there are none, and ``read_current`` the texts of the files in force.
    ``find_problem`` tells why the files of now are not in force, "" if they are. ``find_zone`` gives the zone
    of hours and days.
    """

    def __init__(
        self,
        find_gate: Callable[[], Gate | None],
        lookup: Lookup,
        directory: Directory,
        access: Access,
        past: PastMesh,
        modes: ModeSwitch,
        read_current: Callable[[], CurrentPolicies] = lambda: CurrentPolicies({}, {}),
        find_problem: Callable[[], str] = str,
        find_zone: Callable[[], tzinfo] = lambda: UTC,
    ) -> None:
        self._find_gate = find_gate
        self._lookup = lookup
        self._directory = directory
        self._access = access
        self._past = past
        self.modes = modes
        self._read_current = read_current
        self._find_problem = find_problem
        self._find_zone = find_zone
        self._replaying = asyncio.Lock()

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
        facts["scopes"] = sorted(call.principal.scopes)
        if gate is None:
            return {**facts, "mode": "off", "verdict": "allow", "policies": [], "concerned": []}
        explained = gate.explain(call, listing, skill)
        if not _is_owner(reader):
            # where the owner keeps policies is nobody else's business
            explained["concerned"] = [
                {key: value for key, value in row.items() if key != "file"} for row in explained["concerned"]
            ]
        return {**facts, **explained}

    def make_principal(self, caller: str) -> tuple[Principal, bool]:
        """Another caller as it calls, and whether its scopes are assumed.

        Those of a token are known, and those of a JWT only while it is used.
        """
        if caller.startswith(_TOKEN) and (scopes := self._past.find_scopes(caller)) is not None:
            return Principal(caller, "token", scopes), False
        if caller == ANONYMOUS.id:
            return ANONYMOUS, False
        if ":" not in caller:  # an agent has the token of its mesh, as the owner's programs have
            return Principal(caller, "mesh", _MESH_SCOPES), caller != "local"
        return Principal(caller, "token", _USUAL_SCOPES), True

    def list_all(self) -> Json:
        """The policies in force, with what each has decided since this process started."""
        gate, problem = self._find_gate(), self._find_problem()
        not_loaded = {"problem": problem} if problem else {}
        if gate is None:
            return {"mode": "off", "policies": [], **not_loaded}
        policies = gate.engine.policies
        return {
            **not_loaded,
            "mode": gate.mode,
            "default": policies.default,
            "digest": policies.digest,
            "policies": gate.list_policies(),
        }

    async def replay(
        self,
        files: Mapping[str, str],
        groups: Mapping[str, Sequence[str]] | None,
        default: Default,
        since: datetime,
        *,
        with_current: bool = False,
    ) -> Json:
        """What these policies would have decided about the recorded calls since then.

        ``groups`` None = those in force. ``with_current`` = together with the policies in force. Replays run
        one after the other, because each keeps a processor busy. Raises InvalidSettingError for policies that
        are not valid.
        """
        gate, teams = self._find_gate(), None
        if groups is None:
            groups = {} if gate is None else gate.engine.policies.groups
        if with_current:
            current = await asyncio.to_thread(self._read_current)
            files, teams = {**current.files, **files}, current.teams
        from retinue.policies.policy_set import load_policies

        async with self._replaying:
            policies = await asyncio.to_thread(
                load_policies, files, groups=groups, default=default, teams=teams
            )
            return await self._replay(policies, since)

    async def _replay(self, policies: PolicySet, since: datetime) -> Json:
        from retinue.policies.history.replay import Replay, ReplayReport

        keys = await asyncio.to_thread(lambda: {call.key for call in self._iterate_calls(since)})
        skills = await self._find_skills(keys)
        replay = Replay(policies, skills, self._past.find_groups, self._find_zone())
        report = ReplayReport()

        def run() -> None:
            for call in self._iterate_calls(since):
                report.add(call, replay.decide(call))

        await asyncio.to_thread(run)
        return {
            "since": since.isoformat(timespec="seconds"),
            "calls": sum(report.counts.values()),
            "policies": len(policies.policies),
            "digest": policies.digest,
            "assumed": replay.assumed,
            **report.as_json(),
        }

    async def suggest(self, groups: Mapping[str, list[str]], since: datetime) -> Json:
        """The narrowest set that permits the calls since then, as Cedar. Raises InvalidSettingError."""
        from retinue.policies.history.suggesting import Usage

        def iterate() -> Iterator[PastCall]:
            return self._iterate_calls(since, with_relays=True)

        keys = await asyncio.to_thread(lambda: {call.key for call in iterate()})
        usage = Usage(await self._find_skills(keys))

        def run() -> str:
            for call in iterate():
                usage.add(call)
            return usage.render(groups, since)

        return {"cedar": await asyncio.to_thread(run), "gone": usage.gone}

    def _iterate_calls(self, since: datetime, *, with_relays: bool = False) -> Iterator[PastCall]:
        """The calls that policies decided about, oldest first; in any thread."""
        from retinue.policies.history.past_calls import read_past_call
        from retinue.policies.history.replay import is_decided, is_of_owner

        for row, inputs in self._past.read_calls(since):
            call = read_past_call(row, inputs)
            if call is None or is_of_owner(call):
                continue
            if with_relays or is_decided(call, frozenset(RELAYS)):
                yield call

    async def _find_skills(self, keys: Collection[SkillKey]) -> dict[SkillKey, KnownSkill]:
        """The skills of these keys that the mesh has now, in the same version."""
        from retinue.mesh.observing.call_facts import shorten_digest
        from retinue.policies.entities import Resource
        from retinue.policies.history.replay import KnownSkill

        await self._directory.ensure_fresh()
        listings: dict[str, list[Listing]] = {}
        for agent in {key.agent for key in keys}:
            listings[agent] = self._directory.open_all(self._directory.list_named(agent))
            await asyncio.sleep(0)
        own = await self._lookup.resolve_skill(RELAYS[0], frozenset({"mesh"}))
        if (listing := await self._lookup.open(own[0])) is not None:
            listings[listing.name] = [listing]
        skills: dict[SkillKey, KnownSkill] = {}
        for key in keys:
            offers = [
                (listing, skill)
                for listing in listings.get(key.agent, ())
                if (listing.version or None) == (key.version or None)
                and (skill := listing.record.find_skill(key.skill)) is not None
            ]
            if not offers:
                continue
            listing, skill = max(offers, key=lambda offer: shorten_digest(offer[0].digest) == key.listing)
            is_same = shorten_digest(listing.digest) == key.listing
            skills[key] = KnownSkill(Resource.of(listing, skill), is_same)
        return skills

    async def check(
        self,
        files: Mapping[str, str],
        groups: Mapping[str, list[str]],
        default: Default,
        *,
        with_teams: bool = False,
    ) -> Json:
        """What of these policies does not fit the mesh, as findings with policy and problem.

        ``with_teams`` = together with the policies of the teams that run. Raises InvalidSettingError for
        policies that are not valid.
        """
        from retinue.policies.fitting import MeshFit
        from retinue.policies.policy_set import load_policies

        teams = None
        if with_teams:
            current = await asyncio.to_thread(self._read_current)
            files, teams = {**files, **{name: current.files[name] for name in current.teams}}, current.teams
        policies = await asyncio.to_thread(load_policies, files, groups=groups, default=default, teams=teams)
        fit = MeshFit(policies)
        own = await self._lookup.resolve_skill("call_skill", frozenset({"mesh"}))
        if (own_listing := await self._lookup.open(own[0])) is not None:
            fit.add(own_listing)
        await self._directory.ensure_fresh()
        async for page in self._directory.iterate_pages():
            for start in range(0, len(page), _PAGE):
                for listing in self._directory.open_all(page[start : start + _PAGE]):
                    fit.add(listing)
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
            str | None,
            Field(description="The id of another caller; needs the scope approves", min_length=1),
        ] = None,
    ) -> Json:
        """Tells what the policies decide about a call, without making it: verdict, policies and why."""
        principal, is_assumed = ctx.principal, False
        if caller is not None and caller != principal.id:
            _check_owner(principal)
            principal, is_assumed = book.make_principal(caller)
        call = Call(new_id(), skill, arguments or {}, principal, "execute", ctx.trace, agent=agent)
        explained = await book.explain(call, ctx.principal)
        return {**explained, "scopes_assumed": True} if is_assumed else explained

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
        default: Literal["allow", "deny"] = "allow",
        with_teams: Annotated[bool, Field(description="Together with the policies of running teams")] = False,
    ) -> Json:
        """Checks policies against the skills of this mesh: unknown names, arguments of other types."""
        _check_owner(ctx.principal)
        return await book.check(files, groups or {}, default, with_teams=with_teams)

    @agent.skill(read_only=True, listed=False)
    async def replay_policies(
        files: Annotated[dict[str, str], Field(description="Cedar texts by the names of their files")],
        ctx: Context,
        groups: dict[str, list[str]] | None = None,
        default: Literal["allow", "deny"] = "allow",
        since_s: Annotated[float, Field(description="Seconds back from now", gt=0, le=MAX_SINCE_S)] = DAY_S,
        with_current: Annotated[bool, Field(description="Together with the policies in force")] = False,
    ) -> Json:
        """Tells what these policies would have decided about recorded calls, as far as the audit tells."""
        _check_owner(ctx.principal)
        since = datetime.now(UTC) - timedelta(seconds=since_s)
        return await book.replay(files, groups, default, since, with_current=with_current)

    @agent.skill(read_only=True, listed=False)
    async def suggest_policies(
        ctx: Context,
        groups: dict[str, list[str]] | None = None,
        since_s: Annotated[float, Field(description="Seconds back from now", gt=0, le=MAX_SINCE_S)] = DAY_S,
    ) -> Json:
        """Writes the narrowest policies that permit what was called, for ``policy.default = "deny"``."""
        _check_owner(ctx.principal)
        return await book.suggest(groups or {}, datetime.now(UTC) - timedelta(seconds=since_s))

    @agent.skill(listed=False)
    async def set_policy_mode(
        ctx: Context, mode: Literal["off", "watch", "enforce", "settings"] | None = None
    ) -> Json:
        """Sets what policies do in this mesh, and tells it; without a mode, nothing is set."""
        _check_owner(ctx.principal)
        if mode is not None:
            await book.modes.set(None if mode == "settings" else mode)
        current, is_set = book.modes.read()
        return {"mode": current, "is_set": is_set}


def _is_owner(principal: Principal) -> bool:
    return SCOPE in principal.scopes or principal.kind == "local"


def _check_owner(principal: Principal) -> None:
    if not _is_owner(principal):
        raise InsufficientScopeError(
            "the policies of others are shown to a holder of the scope approves",
            scopes=(SCOPE,),
            remedy="use the command line of the owner: retinue policy",
        )
