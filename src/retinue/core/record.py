"""The agent record and the listing: who an agent is, and what one source said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

Visibility = Literal["private", "mesh", "exposed"]
"""Who sees a skill: its process · this mesh · MCP clients too (DESIGN 2, visibility)."""

Schema = Mapping[str, Any]
SignatureState = Literal["none", "valid", "invalid", "unknown_key"]
Health = Literal["unknown", "healthy", "degraded", "unreachable"]
"""What was measured of an agent; unknown = nobody has asked it yet."""


def _no_facts() -> Mapping[str, Any]:
    return {}


def _no_labels() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One door of an agent; ``url`` is kept exactly as authored."""

    protocol: str
    url: str
    wire_version: str | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """What a skill promises about its effects; ``runs_code`` wants a mesh key or a token."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    runs_code: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """A request that the skill serves, in words, as arguments, or both."""

    text: str | None = None
    arguments: Mapping[str, Any] | None = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class Skill:
    """A callable unit; ``id`` is kept as authored."""

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
    extra: Mapping[str, Any] = field(default_factory=_no_facts)


@dataclass(frozen=True, slots=True)
class Trait:
    """A KOI fact; callable exactly when ``skill_id`` is set (schemas live on the skill)."""

    name: str
    description: str = ""
    type: str = "str"
    value: Any = None
    skill_id: str | None = None
    extra: Mapping[str, Any] = field(default_factory=_no_facts)


@dataclass(frozen=True, slots=True)
class Resource:
    """Something an agent lets itself be asked to read; ``uri`` may be a template."""

    uri: str
    name: str
    mime: str = "application/json"
    visibility: Visibility = "mesh"
    title: str | None = None
    description: str = ""
    live: bool = False
    """It changes, and readers may ask to be told."""


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """One argument of a prompt."""

    name: str
    description: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt an agent offers."""

    name: str
    arguments: tuple[PromptArgument, ...] = ()
    visibility: Visibility = "mesh"
    title: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """Who an agent is and what it can do; pallet card, A2A card, profile and tools render it.

    ``extra`` keeps unknown wire keys per dialect, so that nothing read is lost.
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
    extra: Mapping[str, Any] = field(default_factory=_no_facts)

    def find_skill(self, skill_id: str) -> Skill | None:
        """The skill of this exact id, whatever its visibility."""
        for skill in self.skills:
            if skill.id == skill_id:
                return skill
        return None

    @property
    def url(self) -> str | None:
        """The url of the ``execute`` door (its base, as the pallet card has it), exactly as authored."""
        for endpoint in self.endpoints:
            if endpoint.protocol == "execute":
                return endpoint.url
        return None


class ListingKey(NamedTuple):
    """Identity of a listing: the source, and the repository or RID within it."""

    source: str
    key: str


@dataclass(frozen=True, slots=True)
class Stats:
    """What was seen of an agent's calls since this process started."""

    calls: int = 0
    failures: int = 0
    mean_latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A record as one source gave it, with what was measured since.

    ``enabled`` is a person's choice; ``reachable`` is measured (None = never asked). ``last_error``
    says why an agent is unreachable or, where it is reachable all the same, degraded; ``since`` is
    when it became what it is (`health`). ``raw`` are the bytes as received, or b"" for a record made here.
    """

    record: AgentRecord
    source: str
    key: str
    tag: str | None = None
    digest: str | None = None
    hash: str | None = None
    raw: bytes = b""
    published_at: datetime | None = None
    fetched_at: datetime | None = None
    etag: str | None = None
    owner: str | None = None
    signature: SignatureState = "none"
    hops: tuple[str, ...] = ()
    enabled: bool = True
    reachable: bool | None = None
    since: datetime | None = None
    last_error: str | None = None
    stats: Stats = Stats()

    @property
    def id(self) -> ListingKey:
        return ListingKey(self.source, self.key)

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
    def health(self) -> Health:
        """What was measured, in one word."""
        return say_health(self.reachable, self.last_error)


def say_health(reachable: bool | None, last_error: str | None) -> Health:
    """One word for what was measured of an agent."""
    if reachable is None:
        return "unknown"
    if not reachable:
        return "unreachable"
    return "healthy" if last_error is None else "degraded"
