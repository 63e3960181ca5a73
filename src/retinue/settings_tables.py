"""The tables of ``retinue.toml``: their keys, defaults and limits."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from retinue.core.record import HintName
from retinue.web.addresses import check_public_url

_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


PublicUrl = Annotated[str, AfterValidator(check_public_url)]
"""The URL under which others reach a process, such as that of a proxy in front of it."""


Proxy = Annotated[ipaddress.IPv4Network | ipaddress.IPv6Network, PlainSerializer(str)]


OwnersHints = Mapping[str, Mapping[HintName, bool]]
"""Hints about skills by globs of their ids, which the owner gives in place of their authors."""


class HubTable(_Table):
    """``[hub]``: address and listing mode of the hub."""

    host: str = "127.0.0.1"
    port: int = Field(9000, ge=0, le=65535)
    advertise: PublicUrl | None = None
    processes: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = 1
    bare: bool = False
    listing: Literal["all", "search", "auto"] = "auto"
    expose: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    hints: OwnersHints = {}
    identity: Literal["retinue", "lexical"] = "retinue"
    models: tuple[str, ...] | None = None


class AgentTable(_Table):
    """One ``[[agents]]`` entry: an agent that the hub starts as a child process.

    ``${VARIABLE}`` in ``env`` stands for a variable of the hub's environment; ``"inherit"`` passes all of it.
    """

    target: str
    host: str = "127.0.0.1"
    port: int | None = Field(None, ge=1, le=65535)
    advertise: PublicUrl | None = None
    env: Mapping[str, str] | Literal["inherit"] = {}


class ImportTable(_Table):
    """``[imports.NAME]``: an MCP server as an agent, at a ``url`` or started by a ``command``, an HTTP API
    whose OpenAPI document is at a URL or in a file, or an agent that speaks ``a2a`` at a URL.

    ``${VARIABLE}`` in ``env``, ``headers`` and ``client_secret`` stands for a variable of the hub's
    environment.
    """

    url: str | None = None
    headers: Mapping[str, str] = {}
    client_id: str | None = None
    client_secret: str | None = None
    client_metadata_url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    folder: Path | None = None
    openapi: str | None = None
    a2a: str | None = None
    server: str | None = None
    key_origins: tuple[PublicUrl, ...] = ()
    strict: bool = False
    visibility: Literal["mesh", "exposed"] = "exposed"
    any_uri: bool = False
    hints: OwnersHints = {}
    start_s: float = Field(60.0, gt=0)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(source is not None for source in (self.url, self.command, self.openapi, self.a2a)) != 1:
            raise ValueError("an import has one of url, command, openapi and a2a")
        return self


class ImportsTable(BaseModel):
    """``[imports]``: the imported MCP servers by name, and whether their tools are pinned."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, ImportTable] = {}

    pin: bool = True

    @property
    def servers(self) -> Mapping[str, ImportTable]:
        """The imports by name."""
        return self.__pydantic_extra__ or {}


class LlmTable(_Table):
    """``[llm.NAME]``: a language model as the agent NAME, over an API or through a command-line agent.

    The key itself is never a setting: ``api_key_env`` names the environment variable that holds it, and
    ``${VARIABLE}`` in ``env`` stands for a variable of the hub's environment. Costs are in US dollars; a run
    is all calls of one trace, a day is that of UTC.
    """

    enabled: bool = True
    backend: Literal["auto", "api", "command"] = "auto"
    provider: Literal["anthropic", "google", "openai"] | None = None
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    folder: Path | None = None
    scores: (
        Mapping[Literal["planning", "execution", "review"], Annotated[float, Field(ge=0, le=1)]] | None
    ) = None
    context_window: int | None = Field(None, ge=1)
    languages: tuple[str, ...] = ()
    prices: (
        Mapping[Literal["input", "output", "cached", "cache_write"], Annotated[float, Field(ge=0)]] | None
    ) = None
    timeout_s: float = Field(300.0, gt=0)
    retries: int = Field(3, ge=0, le=10)
    concurrency: int = Field(8, ge=1)
    max_tokens: int = Field(8192, ge=1)
    max_tokens_per_call: int | None = Field(None, ge=1)
    max_tokens_per_run: int | None = Field(None, ge=1)
    max_tokens_per_day: int | None = Field(None, ge=1)
    max_cost_per_call: float | None = Field(None, gt=0)
    max_cost_per_run: float | None = Field(None, gt=0)
    max_cost_per_day: float | None = Field(None, gt=0)


class PolicyTable(_Table):
    """``[policy]``: what the policies in ``policies/*.cedar`` do, and where else there are some.

    ``default`` decides about calls that no policy permits or forbids. ``files`` are globs, below the folder
    of ``retinue.toml``; the files in the state folder belong to the policies always. ``record = "inputs"``
    keeps the arguments that policies read for seven days, for replays; keys, cards and IBANs are masked.
    ``timezone`` is that of ``context.hour`` and ``context.weekday``.
    """

    mode: Literal["off", "watch", "enforce"] = "enforce"
    default: Literal["allow", "deny"] = "allow"
    files: tuple[str, ...] = ("policies/*.cedar",)
    timezone: str = "UTC"
    record: Literal["nothing", "inputs"] = "nothing"


class ApprovalsTable(_Table):
    """``[approvals]``: where the hub tells of calls that wait for a person.

    ``webhook`` is the URL of a chat system or a bridge to one. ``webhook_secret_env`` names the environment
    variable with the secret that signs the notices.
    """

    webhook: str | None = None
    webhook_secret_env: str = "RETINUE_APPROVALS_SECRET"  # noqa: S105 - the name of a variable

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        parts = urlsplit(self.webhook or "https://none")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("webhook is no http or https URL")
        return self


class GuardTable(_Table):
    """``[guards.NAME]``: a guard of the arguments and results of calls.

    ``use`` is ``sensitive``, ``instructions`` or the name of an installed guard, by default NAME. ``skills``
    are globs ``AGENT/SKILL``, ``exempt`` paths of values that stay, ``options`` those of an installed guard.
    """

    enabled: bool = True
    use: str | None = None
    skills: tuple[str, ...] = ("*/*",)
    kinds: tuple[Literal["key", "card", "iban", "email", "phone"], ...] = ("key", "card", "iban")
    arguments: Literal["off", "deny", "redact", "ask"] | None = None
    results: Literal["off", "deny", "redact"] | None = None
    exempt: tuple[str, ...] = ()
    timeout_s: float = Field(1.0, gt=0, le=60)
    options: Mapping[str, Any] = {}


class PartsTable(_Table):
    """``[parts]``: names of parts of other distributions that are switched off."""

    off: tuple[str, ...] = ()


class TimeoutTable(_Table):
    """``[timeouts]``: time limits in seconds."""

    door_s: float = Field(60.0, gt=0)
    agent_call_s: float = Field(30.0, gt=0)
    drain_s: float = Field(30.0, ge=0)
    leave_s: float = Field(0.0, ge=0)
    registry_s: float = Field(10.0, gt=0)
    probe_s: float = Field(2.0, gt=0)


class TraceTable(_Table):
    """``[trace]``: limits on a chain of calls."""

    max_depth: int = Field(5, ge=1, le=64)
    calls: int = Field(10_000, ge=1)
    tokens: int | None = Field(None, ge=0)
    dollars: float | None = Field(None, ge=0)
    refuse_cycles: bool = False
    strict: Literal["off", "trace", "signed"] = "off"


class LimitTable(_Table):
    """``[limits]``: limits of each endpoint, and of the HTTP server below it."""

    body_bytes: int = Field(4 * 1024 * 1024, ge=1024)
    held_bytes: int = Field(256 * 1024 * 1024, ge=1024 * 1024)
    head_bytes: int = Field(64 * 1024, ge=4096)
    headers: int = Field(100, ge=16)
    head_s: float = Field(15.0, gt=0)
    body_s: float = Field(15.0, gt=0)
    connections: int = Field(4096, ge=1)
    in_flight: int = Field(1000, ge=1)
    calls_per_s: float | None = Field(None, gt=0)
    burst: int = Field(100, ge=1)


class LogTable(_Table):
    """``[logs]``: size and number of the log files in the state folder."""

    file_bytes: int = Field(10 * 1024 * 1024, ge=1024)
    files: int = Field(4, ge=1, le=100)


class AuditTable(_Table):
    """``[audit]``: retention of the audit log of a hub, and the file to which its rows are exported."""

    keep_days: float = Field(30.0, gt=0)
    keep_bytes: int = Field(256 * 1024 * 1024, ge=1024 * 1024)
    export: Path | None = None
    export_file_bytes: int = Field(100 * 1024 * 1024, ge=1024)
    export_files: int = Field(10, ge=1, le=1000)


class HistoryTable(_Table):
    """``[history]``: whether a hub keeps what came of calls that were found by words.

    ``wishes`` is what is kept of requests that nobody serves: their words (``text``), only their number
    (``count``), or nothing (``off``).
    """

    keep: bool = True
    wishes: Literal["text", "count", "off"] = "count"


class ExamTable(_Table):
    """``[exam]``: whether a hub asks the agents that join their own examples, and within which limits.

    ``require`` leaves an agent that has not passed out of the choice of calls that name no agent.
    """

    policy: Literal["require", "warn", "off"] = "warn"
    every_s: float = Field(86_400.0, ge=60)
    calls: int = Field(5, ge=1, le=100)
    timeout_s: float = Field(10.0, gt=0, le=300)
    dollars: float = Field(0.05, ge=0)
    dollars_per_day: float = Field(1.0, ge=0)


class ReceiptsTable(_Table):
    """``[receipts]``: whose receipts count, and whether this hub issues own ones.

    ``trust`` has names of ``retinue keys trust``; None = all of them, () = nobody, and nothing is fetched.
    """

    publish: bool = False
    trust: tuple[str, ...] | None = None
    max_age_days: float = Field(30.0, ge=1, le=365)
    every_s: float = Field(21_600.0, ge=60)
    publish_every_s: float = Field(86_400.0, ge=60)


class EndpointTable(_Table):
    """``[doors]``: host names and web origins accepted in addition to this machine's own."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    proxies: tuple[Proxy, ...] = ()


class AuthTable(_Table):
    """``[auth]``: anonymous access, and JWTs accepted in addition to tokens from ``retinue token new``."""

    anonymous: bool = True
    jwks_url: str | None = None
    jwks_file: Path | None = None
    issuer: str | None = None
    audience: tuple[str, ...] = ()
    scopes_claim: str = "scope"
    groups_claim: str | None = None
    scopes: Mapping[str, Literal["exposed", "mesh", "runs_code"]] = {}
    authorization_servers: tuple[str, ...] = ()
    resource: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        keys = (self.jwks_url, self.jwks_file)
        if all(keys):
            raise ValueError("give jwks_url or jwks_file, not both")
        if any(keys) and not (self.issuer and self.audience):
            raise ValueError(
                "jwks_url and jwks_file require issuer and audience, so that tokens of other services are "
                "rejected"
            )
        if self.jwks_url is not None and not _is_tamper_proof(self.jwks_url):
            raise ValueError("jwks_url must begin with https:// unless its host is this machine")
        return self


class AccessTable(_Table):
    """``[access.NAME]``: which callers the agent NAME accepts, and which agents it may call."""

    receive: tuple[str, ...] | None = None
    send: tuple[str, ...] | None = None


def _as_whole_number(value: Any) -> Any:
    """An environment variable is text, which a literal number does not accept."""
    return int(value) if isinstance(value, str) and value.strip().lstrip("-").isdecimal() else value


class ExecuteTable(_Table):
    """``[execute]``: options of the ``/execute`` endpoint."""

    answer_without_id: bool = False
    validation_code: Annotated[Literal[-32603, -32602], BeforeValidator(_as_whole_number)] = -32603


class McpTable(_Table):
    """``[mcp]``: options of the MCP endpoints."""

    names: Literal["safe", "seed"] = "safe"
    guard_as_tool_error: bool = False
    result_chars: int = Field(20_000, ge=4_000)


class MessageTable(_Table):
    """``[messages]``: options of ``/messages``."""

    strict: bool = False
    signatures: Literal["off", "verify", "require"] = "verify"
    signature_age_s: float = Field(300.0, gt=0, le=86_400)
    sign: bool = False
    wait_s: float = Field(25.0, ge=0, le=300)
    private_callbacks: bool = False
    log: Path | None = None


class DirectoryTable(_Table):
    """``[directory]``: how often the agent directory is refreshed."""

    ttl_s: float = Field(300.0, gt=0)
    refresh_s: float = Field(60.0, gt=0)
    tag: str | None = None


class SignatureTable(_Table):
    """``[signatures]``: whether published cards are signed, and which signatures others need.

    ``trusted`` names files of public keys (JWK sets), besides those of ``retinue keys trust``.
    """

    sign: bool = True
    policy: Literal["require", "warn", "off"] = "warn"
    trusted: tuple[Path, ...] = ()
    valid_days: float | None = Field(None, gt=0)


class MetricsTable(_Table):
    """``[metrics]``: who may read ``/metrics``."""

    public: bool = False


class WorkerTable(_Table):
    """``[worker]``: where a worker serves probes and metrics; without a port it serves none."""

    host: str = "127.0.0.1"
    port: int | None = Field(None, ge=0, le=65535)
    advertise: PublicUrl | None = None


class DiscoveryTable(_Table):
    """``[discovery]``: the hub as a registry of Agentic Resource Discovery (ARD).

    ``publisher`` is the domain in the identifiers of agents; ``upstreams`` are the urls of other registries,
    or of catalogs if they end with ``.json``.
    """

    publisher: str = Field("localhost", pattern=r"^[A-Za-z0-9.-]+$")
    name: str = "Retinue"
    upstreams: tuple[str, ...] = ()
    timeout_s: float = Field(5.0, gt=0)
    max_hops: int = Field(3, ge=1, le=16)


class HookTable(_Table):
    """``[hooks]``: webhooks that registries send to the hub."""

    token_env: str | None = None


class RoutingTable(_Table):
    """``[routing]``: how one of several matching agents is chosen for a call."""

    strategy: Literal["best", "first", "round-robin", "random", "least-connections"] = "best"


class WorkflowTable(_Table):
    """``[workflows]``: folder of custom workflows, files and modules with workflows in Python."""

    directory: Path | None = None
    modules: tuple[str, ...] = ()


class RunTable(_Table):
    """``[runs]``: retention of ended runs, lease of a node, concurrency of one node."""

    lease_s: float = Field(15.0, ge=1)
    concurrency: int = Field(100, ge=1)
    keep: int = Field(100_000, ge=1)
    keep_days: float = Field(30.0, gt=0)
    keep_ids_days: float = Field(365.0, gt=0)


class ArtifactTable(_Table):
    """``[artifacts]``: the size of an artifact, quotas, how long a save holds it, and where content is.

    Without ``registry``, the URL of an OCI registry, content is in the registry of the state folder.
    """

    max_bytes: int = Field(2 * 1024**3, ge=1024)
    quota_bytes: int = Field(20 * 1024**3, ge=1024 * 1024)
    caller_bytes: int = Field(10 * 1024**3, ge=1024 * 1024)
    keep_days: float = Field(30.0, gt=0)
    registry: str | None = None
    repository: str = Field("retinue-artifacts", pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$", max_length=200)


class A2aTable(_Table):
    """``[a2a]``: retention of ended tasks, addresses of push notifications, cards for clients of 0.3."""

    keep: int = Field(10_000, ge=1)
    keep_days: float = Field(30.0, gt=0)
    private_push_urls: bool = False
    legacy_cards: bool = True


class RegistryTable(_Table):
    """``[registry.NAME]``: options for the registry at ``url``, wherever that url is used."""

    url: str
    mirrors: tuple[str, ...] = ()
    ca_file: Path | None = None
    repositories: tuple[str, ...] = ()
    mesh: bool = False


def _is_tamper_proof(url: str) -> bool:
    """Whether a response from this url cannot be changed in transit."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK_HOSTS)
