"""The agent record, and the listing: a record with the facts of one source about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from retinue.core.trust import Trust

HUB_NAME = "retinue"
"""The name of the hub's agent."""

RUN_WORKFLOW = "orchestrate_workflow"
"""The skill of the hub that runs a definition for a caller and waits."""

LOCAL_SOURCE = "local"
"""The source of the agents of this process."""

QUERY_CAPABILITIES = "query_capabilities"
"""The id of the reserved skill by which every agent tells what it can do; no agent declares it."""

Visibility = Literal["private", "mesh", "exposed"]
"""Who sees a skill: its own process · this mesh · MCP clients as well."""


def is_visible(visibility: Visibility, scopes: frozenset[str]) -> bool:
    """Whether a caller with these scopes sees what has this visibility; for others it does not exist.

    A skill exposed to MCP clients is visible to the mesh as well.
    """
    return visibility in scopes or (visibility == "exposed" and "mesh" in scopes)


Schema = Mapping[str, Any]
SignatureState = Literal["none", "valid", "invalid", "unknown_key"]
Health = Literal["unknown", "healthy", "degraded", "unreachable"]
"""The measured health of an agent; unknown = not called or probed yet."""


def _no_facts() -> Mapping[str, Any]:
    return {}


def _no_labels() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of an agent; ``url`` is kept exactly as authored."""

    protocol: str
    url: str
    wire_version: str | None = None


HintName = Literal["read_only", "destructive", "idempotent", "open_world", "runs_code"]


@dataclass(frozen=True, slots=True)
class Hints:
    """The declared effects of a skill; a skill that ``runs_code`` needs the scope of that name."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    runs_code: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """An example request of a skill, as text, as arguments, or both."""

    text: str | None = None
    arguments: Mapping[str, Any] | None = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class Skill:
    """One callable skill of an agent; ``id`` is kept as authored.

    The schemas are JSON Schemas. ``visibility`` is ``private`` (this process), ``mesh`` or ``exposed`` (MCP
    clients too). ``similes`` are other names by which a search finds it. ``timeout_s`` limits each call in
    seconds. ``extra`` keeps unknown keys of a parsed card, by format.
    """

    id: str
    description: str = ""
    title: str | None = None
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    tags: tuple[str, ...] = ()
    similes: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    roles: tuple[str, ...] = ()
    visibility: Visibility = "mesh"
    hints: Hints = Hints()
    timeout_s: float | None = None
    channel: bool = True
    """Whether it may report to its caller or ask it while it runs; False when its function takes no ctx."""
    listed: bool = True
    """Whether it is in the tool lists of MCP clients; else it is found and called all the same."""
    extra: Mapping[str, Any] = field(default_factory=_no_facts)

    @property
    def is_repeatable(self) -> bool:
        """Whether its author says that it may be executed twice."""
        return self.hints.idempotent or self.hints.read_only


@dataclass(frozen=True, slots=True)
class Trait:
    """A fact about an agent (KOI); callable if ``skill_id`` is set, with the schemas of that skill."""

    name: str
    description: str = ""
    type: str = "str"
    value: Any = None
    skill_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=_no_facts)


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that an agent offers for reading; ``uri`` may be a template."""

    uri: str
    name: str
    mime: str = "application/json"
    visibility: Visibility = "mesh"
    title: str | None = None
    description: str = ""
    live: bool = False
    """Whether it changes, so that readers may subscribe to it."""


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """One argument of a prompt."""

    name: str
    description: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that an agent offers."""

    name: str
    arguments: tuple[PromptArgument, ...] = ()
    visibility: Visibility = "mesh"
    title: str | None = None
    description: str = ""


Item = Skill | Resource | Prompt
"""An item that an agent offers: to call, to read, or to insert."""


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent and its skills; rendered as pallet card, profile and MCP tools.

    ``extra`` keeps unknown keys of a parsed card, by format, so that nothing is lost.
    """

    name: str
    version: str | None = None
    title: str | None = None
    description: str = ""
    maintainer: str | None = None
    provider: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    skills: tuple[Skill, ...] = ()
    traits: tuple[Trait, ...] = ()
    resources: tuple[Resource, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    topics: tuple[str, ...] = ()
    scores: Mapping[str, float] | None = None
    context_window: int | None = None
    languages: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=_no_labels)
    annotations: Mapping[str, str] = field(default_factory=_no_labels)
    resource_globs: Mapping[Literal["expose", "private"], tuple[str, ...]] | None = None
    security: Mapping[str, Any] | None = None
    deprecated: bool | str = False
    """True, or the reason: other agents are preferred, and callers get a warning."""
    weight: int = 100
    """Per cent of the calls without a version range that go to this version while it is the newest."""
    extra: Mapping[str, Any] = field(default_factory=_no_facts)

    def find_skill(self, skill_id: str) -> Skill | None:
        """The skill of this exact id, whatever its visibility."""
        for skill in self.skills:
            if skill.id == skill_id:
                return skill
        return None

    @property
    def url(self) -> str | None:
        """The url of the ``execute`` endpoint (its base, as in the pallet card), exactly as authored."""
        for endpoint in self.endpoints:
            if endpoint.protocol == "execute":
                return endpoint.url
        return None


def render_deprecation(record: AgentRecord) -> str:
    """The warning that a caller of a deprecated agent gets; "" for an agent that is not deprecated."""
    if record.deprecated is False:
        return ""
    subject = f"{record.name} {record.version or ''}".rstrip()
    reason = f": {record.deprecated}" if isinstance(record.deprecated, str) and record.deprecated else ""
    return f"{subject} is deprecated{reason}"


class ListingKey(NamedTuple):
    """The id of a listing: its source, the repository or RID within it, and the tag, "" where there is none.

    The tags of one repository are the versions of one agent.
    """

    source: str
    key: str
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of an agent's calls since this process started."""

    calls: int = 0
    failures: int = 0
    mean_latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A record as one source gave it, with the measurements since.

    ``enabled`` is a person's choice; ``reachable`` is measured (None = not yet). ``last_error`` says why an
    agent is unreachable or, where it is reachable, degraded; ``since`` is when its `health` last changed.
    ``raw`` holds the bytes as received, b"" for a record made in this process.
    """

    record: AgentRecord
    source: str
    key: str
    tag: str | None = None
    digest: str | None = None
    raw: bytes = b""
    published_at: datetime | None = None
    fetched_at: datetime | None = None
    owner: str | None = None
    signature: SignatureState = "none"
    enabled: bool = True
    reachable: bool | None = None
    since: datetime | None = None
    last_error: str | None = None
    stats: Stats = Stats()
    source_trust: Trust = field(default=Trust.OWN_MESH, compare=False)
    """The trust in the agents of its source; the directory sets it."""

    @property
    def trust(self) -> Trust:
        """The trust in its source, or in the key that signed its card."""
        return trust_of(self.source_trust, self.signature)

    @property
    def id(self) -> ListingKey:
        return ListingKey(self.source, self.key, self.tag or "")

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def version(self) -> str | None:
        return self.record.version

    @property
    def url(self) -> str | None:
        """As `AgentRecord.url`."""
        return self.record.url

    @property
    def labels(self) -> Mapping[str, str]:
        return self.record.labels

    @property
    def deprecated(self) -> bool:
        """Whether its author has deprecated it."""
        return self.record.deprecated is not False

    @property
    def weight(self) -> int:
        """As `AgentRecord.weight`."""
        return self.record.weight

    @property
    def keeps_keys(self) -> bool:
        """Whether a repeated idempotency key reaches the agent, which then gives its first outcome."""
        return self.url is not None or self.source == LOCAL_SOURCE

    @property
    def standby(self) -> bool:
        """As `Candidate.standby`."""
        return False

    @property
    def health(self) -> Health:
        """The measured health."""
        return health_of(self.reachable, self.last_error)


class Candidate(Protocol):
    """The facts of an agent without its card: a `Listing`, or an entry of the directory's index."""

    @property
    def id(self) -> ListingKey: ...
    @property
    def source(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str | None: ...
    @property
    def url(self) -> str | None: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def enabled(self) -> bool: ...
    @property
    def reachable(self) -> bool | None: ...
    @property
    def last_error(self) -> str | None: ...
    @property
    def deprecated(self) -> bool: ...
    @property
    def weight(self) -> int: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def standby(self) -> bool:
        """Whether a newer version of the same agent takes the calls, or the agent is deprecated."""
        ...

    @property
    def health(self) -> Health: ...


def trust_of(source: Trust, signature: SignatureState) -> Trust:
    """The trust in an agent of such a source, whose card has such a signature."""
    return min(source, Trust.SIGNED) if signature == "valid" else source


def health_of(reachable: bool | None, last_error: str | None) -> Health:
    """The health that these measurements mean."""
    if reachable is None:
        return "unknown"
    if not reachable:
        return "unreachable"
    return "healthy" if last_error is None else "degraded"
