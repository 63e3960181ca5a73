"""Permissions: who may see a skill, and who may call it (specification 9.3).

- *Visibility* marks a skill, resource or prompt: ``private`` ⊂ ``mesh`` ⊂ ``exposed``
  (`core.record.is_visible`). The lists of an ``agent.json`` set it (`ExposureLists`).
- *Scopes* are what a principal may see and do: ``exposed``, ``mesh``, ``private``, ``runs_code``.
- The *view* of a principal is the agents that it sees: the access lists of the agents (`Access`, S-17) and
  the globs of its token. An agent outside the view does not exist for it in lists, searches, cards and
  calls.

Access lists name principals by id: ``local`` has the token of the state, ``anonymous`` has none,
``token:NAME`` and ``jwt:SUBJECT`` have one that was issued, an agent has its name. The calling process
states the name of an agent; all processes of one mesh trust each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache

from retinue.core.call import ANONYMOUS, Call, Principal
from retinue.core.errors import InsufficientScopeError, NotAuthenticatedError
from retinue.core.record import (
    HUB_NAME,
    AgentRecord,
    Candidate,
    Item,
    Listing,
    Prompt,
    Resource,
    Skill,
    Visibility,
    is_visible,
)
from retinue.core.text import suggest
from retinue.mesh.slices import run_in_slices

DIALECT = "hub"

EXPOSED_HERE = "exposed_here"
"""``extra["hub"]["exposed_here"]`` of a skill: exposed by this hub, and called with the mesh scope."""

_MCP_SCOPES = frozenset({"exposed"})
_REMEMBERED_GLOBS = 1024
_OWN_IDS = frozenset({"local", "mesh"})
"""The ids of the state token and of a mesh token, where no other caller is named."""

MCP_CLIENT = replace(ANONYMOUS, scopes=_MCP_SCOPES)
"""An MCP client without a token."""


# Scopes of principals


def covers(scopes: frozenset[str], others: frozenset[str]) -> bool:
    """Whether a caller with these scopes sees and may do all that one with the other scopes does."""
    return others <= (scopes | {"exposed"} if "mesh" in scopes else scopes)


def check_scopes(skill: Skill, call: Call) -> None:
    """Raise an error where the skill needs a scope that the caller does not have.

    Raises InsufficientScopeError for the holder of a token, NotAuthenticatedError for any other caller.
    """
    if not may_call(skill, call.principal.scopes):
        if call.principal.kind == "token":
            raise InsufficientScopeError(
                f"{skill.id} runs code and wants a token with the scope runs_code",
                scopes=("runs_code",),
                remedy="create one: retinue token new --scope mesh --scope runs_code",
            )
        raise NotAuthenticatedError(
            f"{skill.id} runs code and wants a token",
            remedy="call it with the retinue command line, or send keys/local.token as a bearer token",
        )


def may_call(skill: Skill, scopes: frozenset[str]) -> bool:
    """Whether `check_scopes` lets a caller with these scopes through."""
    return not skill.hints.runs_code or "runs_code" in scopes


def is_mesh_itself(principal: Principal) -> bool:
    """Whether a process of the mesh asks on its own behalf, such as a command or an agent that stops.

    An agent sends its calls with the token of its mesh, too, and names itself, because a caller without any
    token may have chosen the target of its calls.
    """
    is_own = principal.kind == "local" or (
        principal.kind == "mesh" and (principal.id in _OWN_IDS or principal.id.startswith("join:"))
    )
    return is_own and "mesh" in principal.scopes


def as_mcp_client(principal: Principal) -> Principal:
    """The principal at an MCP endpoint: without a token it sees only exposed skills."""
    if principal is ANONYMOUS:
        return MCP_CLIENT
    if principal.kind == "anonymous" and principal.scopes != _MCP_SCOPES:
        return replace(principal, scopes=_MCP_SCOPES & principal.scopes)
    return principal


def principal_key(principal: Principal) -> str:
    """A key of the principal with its scopes and limits; it owns sessions and results under this key.

    A principal with fewer scopes has another key, so that it does not get what the other one owns.
    """
    limits = " ".join((*sorted(principal.scopes), *principal.agents))
    return f"{principal.kind}:{principal.id}:{limits}"


# Views: which agents a principal sees


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The access lists of one agent; None = no list, no restriction.

    ``receive``: globs of callers. ``send``: globs ``AGENT`` or ``AGENT/SKILL`` of the skills that it may
    call.
    """

    receive: tuple[str, ...] | None = None
    send: tuple[str, ...] | None = None


ListFilter = Callable[[Candidate, Item], bool]
"""Whether an item of an agent is in the lists of a principal; equal filters decide alike."""


SkillNotes = Callable[[Candidate, Skill], str]
"""What a list tells about a call of a skill of an agent, "" for nothing; equal ones tell alike."""


CheckStart = Callable[[Principal, str, bool], None]
"""Raises an error for a principal that may not start a workflow: its name, and whether it is inline."""

CheckPublish = Callable[[Principal, str], None]
"""Raises an error for a principal that may not publish in a repository."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """The agents that a principal sees; equal views show the same agents.

    ``closed`` agents do not receive its calls. ``globs`` limit it to agents of these names; () = no limit.
    ``lists`` decides which of their items are in lists; None = all. ``notes`` says what a caller of a skill
    is told in lists, None = nothing.
    """

    closed: frozenset[str]
    globs: tuple[str, ...]
    lists: ListFilter | None = None
    notes: SkillNotes | None = None

    def __call__(self, agent: str) -> bool:
        """Whether the agent of this name is seen."""
        return agent not in self.closed and (not self.globs or matches(agent, self.globs))


class Access:
    """The access lists of the agents that this process knows."""

    def __init__(self, rules: Mapping[str, AccessRule] | None = None) -> None:
        self._receive = {
            agent: rule.receive for agent, rule in (rules or {}).items() if rule.receive is not None
        }
        self._filter_of: Callable[[Principal], ListFilter | None] | None = None
        self._notes_of: Callable[[Principal], SkillNotes | None] | None = None
        self._check_start: CheckStart | None = None
        self._check_publish: CheckPublish | None = None

    def replace(self, other: Access) -> None:
        """Take over the lists of another one; for the next calls."""
        self._receive = other._receive

    def filter_lists(self, filter_of: Callable[[Principal], ListFilter | None] | None) -> None:
        """Leave out of lists what the filter of a principal does not show; None = nothing."""
        self._filter_of = filter_of

    def note_lists(self, notes_of: Callable[[Principal], SkillNotes | None] | None) -> None:
        """Tell in lists what the notes of a principal say; None = nothing."""
        self._notes_of = notes_of

    def check_starts(self, check: CheckStart | None) -> None:
        """Ask before a run of a workflow is started; None = every start passes."""
        self._check_start = check

    def check_start(self, principal: Principal, workflow: str, *, is_inline: bool) -> None:
        """Raise PolicyDeniedError where policies forbid that a principal starts a workflow.

        The definition of one that ``is_inline`` comes with the call.
        """
        if self._check_start is not None:
            self._check_start(principal, workflow, is_inline)

    def check_publishes(self, check: CheckPublish | None) -> None:
        """Ask before a skill stores in a repository; None = all may."""
        self._check_publish = check

    def check_publish(self, principal: Principal, repository: str) -> None:
        """Raise PolicyDeniedError where policies forbid that a principal publishes in a repository."""
        if self._check_publish is not None:
            self._check_publish(principal, repository)

    @property
    def has_policies(self) -> bool:
        """Whether policies decide about calls, so that the result of one call does not answer another."""
        return self._filter_of is not None

    def view_of(self, principal: Principal) -> AgentView | None:
        """The view of a principal; None = it sees all agents, as this process itself does."""
        if principal.kind == "local":
            return None
        lists = None if self._filter_of is None else self._filter_of(principal)
        notes = None if self._notes_of is None else self._notes_of(principal)
        if lists is None and notes is None and not (principal.agents or self._receive):
            return None
        callers = (principal.id, principal.through) if principal.through else (principal.id,)
        closed = {
            agent
            for agent, globs in self._receive.items()
            if not all(matches(caller, globs) for caller in callers)
        }
        globs = principal.agents
        if globs and principal.through and principal.kind != "run":
            # the hub executes the run that the agent starts for this caller
            globs = (*globs, HUB_NAME)
        if not (closed or globs or lists or notes):
            return None
        return AgentView(frozenset(closed), globs, lists, notes)


def may_send(send: Sequence[str] | None, agent: str, skill: str) -> bool:
    """Whether a ``send`` list names the skill of this agent; None = no list."""
    if send is None:
        return True
    entries = (entry.partition("/") for entry in send)
    return any(matches(agent, (target,)) and matches(skill, (name or "*",)) for target, _, name in entries)


def is_seen(view: AgentView | None, agent: str) -> bool:
    """Whether a principal with this view sees the agent."""
    return view is None or view(agent)


async def decide_lists(view: AgentView | None, items: Iterable[tuple[Candidate, Item]]) -> None:
    """Decide about these items of lists for a view while others run; what is decided is kept for the lists.

    A decision by a policy takes up to half a millisecond, and a list is made in one go.
    """
    if view is None or (view.lists is None and view.notes is None):
        return

    def decide() -> Iterator[None]:
        for agent, item in items:
            is_listed(view, agent, item)
            if view.notes is not None and isinstance(item, Skill):
                view.notes(agent, item)
            yield

    await run_in_slices(decide())


async def decide_listings(view: AgentView | None, listings: Iterable[Listing]) -> None:
    """`decide_lists` about all items of agents."""
    await decide_lists(
        view, ((listing, item) for listing in listings for item in _list_items(listing.record))
    )


async def decide_agents(view: AgentView | None, listings: Iterable[Listing], scopes: frozenset[str]) -> None:
    """`decide_lists` about as much of each agent as `is_agent_listed` asks for."""

    def list_until_listed() -> Iterator[tuple[Candidate, Item]]:
        for listing in listings:
            for item in _list_items(listing.record):
                if is_visible(item.visibility, scopes):
                    yield listing, item
                    if is_listed(view, listing, item):
                        break

    await decide_lists(view, list_until_listed())


def is_listed(view: AgentView | None, agent: Candidate, item: Item) -> bool:
    """Whether an item of an agent is in the lists of a principal with this view."""
    return view is None or view.lists is None or view.lists(agent, item)


def note_skill(view: AgentView | None, agent: Candidate, skill: Skill) -> Skill:
    """A skill as the list of a principal with this view describes it."""
    note = "" if view is None or view.notes is None else view.notes(agent, skill)
    if not note:
        return skill
    return replace(skill, description=f"{note} {skill.description or skill.title or skill.id}")


def narrow_record(view: AgentView | None, agent: Candidate, record: AgentRecord) -> AgentRecord:
    """The record of an agent without the items that are not in the lists of a principal with this view."""
    if view is None or view.lists is None:
        return record
    skills = tuple(skill for skill in record.skills if is_listed(view, agent, skill))
    ids = {skill.id for skill in skills}
    return replace(
        record,
        skills=skills,
        resources=tuple(resource for resource in record.resources if is_listed(view, agent, resource)),
        prompts=tuple(prompt for prompt in record.prompts if is_listed(view, agent, prompt)),
        traits=tuple(trait for trait in record.traits if trait.skill_id is None or trait.skill_id in ids),
    )


def is_agent_listed(view: AgentView | None, listing: Listing, scopes: frozenset[str]) -> bool:
    """Whether an agent is in the lists of a principal: some item of it is, or it has none that is visible."""
    if view is None or view.lists is None:
        return True
    items = [item for item in _list_items(listing.record) if is_visible(item.visibility, scopes)]
    return not items or any(is_listed(view, listing, item) for item in items)


def is_whole(view: AgentView | None, listing: Listing) -> bool:
    """Whether all items of an agent are in the lists of a principal, so that it may see a published card."""
    if view is None or view.lists is None:
        return True
    return all(is_listed(view, listing, item) for item in _list_items(listing.record))


def _list_items(record: AgentRecord) -> Iterator[Item]:
    yield from record.skills
    yield from record.resources
    yield from record.prompts


def matches(name: str, globs: Sequence[str]) -> bool:
    """Whether any of the globs matches the name; case-sensitive."""
    return any(_match_of(glob)(name) is not None for glob in globs)


@lru_cache(maxsize=_REMEMBERED_GLOBS)
def _match_of(glob: str) -> Callable[[str], object]:
    # fnmatch itself remembers 32,768 patterns, and callers may name them
    return re.compile(translate(glob)).match


# Visibility: what the author of an agent, and this hub, expose


@dataclass(frozen=True, slots=True)
class UnknownEntry:
    """An entry of an exposure list that matches nothing; ``near`` are similar names."""

    list: str
    entry: str
    near: tuple[str, ...] = ()

    def __str__(self) -> str:
        hint = f"; did you mean {', '.join(self.near)}?" if self.near else ""
        return f"mcp.{self.list}: {self.entry!r} matches nothing of this agent{hint}"


@dataclass(frozen=True, slots=True)
class ExposureLists:
    """The ``mcp`` block of an ``agent.json`` (S-06 … S-08; specification 5, doubts 8 and 10).

    Each list holds names or globs such as ``fs:*``: ids of skills, names or URIs of resources, names of
    prompts. A listed item is exposed, any other is private. The private lists take precedence.
    """

    expose_tools: Sequence[str] = ()
    private_tools: Sequence[str] = ()
    expose_resources: Sequence[str] = ()
    private_resources: Sequence[str] = ()
    expose_prompts: Sequence[str] = ()
    private_prompts: Sequence[str] = ()

    def apply(self, record: AgentRecord) -> AgentRecord:
        """The record with the visibility that these lists set."""
        tools = (self.expose_tools, self.private_tools)
        resources = (self.expose_resources, self.private_resources)
        prompts = (self.expose_prompts, self.private_prompts)
        return replace(
            record,
            skills=tuple(replace(s, visibility=_choose(_names_of(s), *tools)) for s in record.skills),
            resources=tuple(
                replace(r, visibility=_choose(_names_of(r), *resources)) for r in record.resources
            ),
            prompts=tuple(replace(p, visibility=_choose(_names_of(p), *prompts)) for p in record.prompts),
        )

    def find_unknown(self, record: AgentRecord) -> list[UnknownEntry]:
        """The entries that match nothing of ``record``, usually typing errors (specification 5, doubt 8)."""
        known: dict[str, list[str]] = {
            "tools": [name for skill in record.skills for name in _names_of(skill)],
            "resources": [name for resource in record.resources for name in _names_of(resource)],
            "prompts": [name for prompt in record.prompts for name in _names_of(prompt)],
        }
        unknown = []
        for kind, names in known.items():
            for prefix in ("expose", "private"):
                entries: Sequence[str] = getattr(self, f"{prefix}_{kind}")
                unknown += [
                    UnknownEntry(f"{prefix}_{kind}", entry, suggest(entry, names))
                    for entry in entries
                    if not _matches_any(tuple(names), (entry,))
                ]
        return unknown


def expose_resources(resources: Iterable[Resource], globs: Sequence[str]) -> tuple[Resource, ...]:
    """The resources; resources that a glob names become exposed, the others are unchanged."""
    return tuple(
        replace(resource, visibility="exposed") if _matches_any(_names_of(resource), globs) else resource
        for resource in resources
    )


def _names_of(thing: Skill | Resource | Prompt) -> tuple[str, ...]:
    if isinstance(thing, Skill):
        return (thing.id,)
    return (thing.name, thing.uri) if isinstance(thing, Resource) else (thing.name,)


def _choose(names: tuple[str, ...], expose: Sequence[str], private: Sequence[str]) -> Visibility:
    return "exposed" if _matches_any(names, expose) and not _matches_any(names, private) else "private"


def _matches_any(names: tuple[str, ...], globs: Sequence[str]) -> bool:
    # The exact name also matches where it contains glob characters, such as brackets.
    return any(name in globs or matches(name, globs) for name in names)


def is_exposed_here(skill: Skill) -> bool:
    """Whether this hub exposed the skill, rather than its author."""
    facts = skill.extra.get(DIALECT)
    return isinstance(facts, dict) and facts.get(EXPOSED_HERE) is True
