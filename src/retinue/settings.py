"""Settings of one process: ``retinue.toml`` ← ``RETINUE_*`` environment ← flags → one frozen object.

A wrong value is refused with its place, what stands there and what would be right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from retinue.core.errors import InvalidSettingError

FILE = "retinue.toml"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HubTable(_Table):
    """``[hub]``"""

    host: str = "127.0.0.1"
    port: int = Field(9000, ge=0, le=65535)
    bare: bool = False
    listing: Literal["all", "search", "auto"] = "auto"
    expose: tuple[str, ...] = ()


class AgentTable(_Table):
    """One ``[[agents]]`` entry: a child process of the hub."""

    target: str
    host: str = "127.0.0.1"
    port: int | None = Field(None, ge=1, le=65535)


class TimeoutTable(_Table):
    """``[timeouts]``, in seconds (DESIGN 7)."""

    door_s: float = Field(60.0, gt=0)
    agent_call_s: float = Field(30.0, gt=0)
    registry_s: float = Field(10.0, gt=0)
    probe_s: float = Field(2.0, gt=0)


class TraceTable(_Table):
    """``[trace]``: bounds of a chain of calls."""

    max_depth: int = Field(5, ge=1, le=64)
    calls: int = Field(10_000, ge=1)
    refuse_cycles: bool = False
    strict: Literal["off", "trace", "signed"] = "off"


class LimitTable(_Table):
    """``[limits]`` of each door."""

    body_bytes: int = Field(4 * 1024 * 1024, ge=1024)
    in_flight: int = Field(1000, ge=1)
    calls_per_s: float | None = Field(None, gt=0)
    burst: int = Field(100, ge=1)


class DoorTable(_Table):
    """``[doors]``: who may reach them besides this machine's own programs and pages (DESIGN 7)."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


class AuthTable(_Table):
    """``[auth]``: whose tokens are taken beside those of ``retinue token new``."""

    anonymous: bool = True
    jwks_url: str | None = None
    jwks_file: Path | None = None
    issuer: str | None = None
    audience: tuple[str, ...] = ()
    scopes_claim: str = "scope"
    scopes: Mapping[str, Literal["exposed", "mesh", "runs_code"]] = {}
    authorization_servers: tuple[str, ...] = ()
    resource: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        keys = (self.jwks_url, self.jwks_file)
        if all(keys):
            raise ValueError("give jwks_url or jwks_file, not both")
        if any(keys) and not (self.issuer and self.audience):
            raise ValueError("with keys, issuer and audience are wanted too: a token of anybody is none")
        if self.jwks_url is not None and not _is_guarded(self.jwks_url):
            raise ValueError("jwks_url must begin with https:// unless it is on this machine")
        return self


class AccessTable(_Table):
    """``[access.NAME]``: whom the agent of this name hears, and whom it may call."""

    receive: tuple[str, ...] | None = None
    send: tuple[str, ...] | None = None


class ExecuteTable(_Table):
    """``[execute]``"""

    answer_without_id: bool = False


class McpTable(_Table):
    """``[mcp]``: how the MCP doors answer."""

    names: Literal["safe", "seed"] = "safe"
    guard_as_tool_error: bool = False
    result_chars: int = Field(100_000, ge=4_000)


class DirectoryTable(_Table):
    """``[directory]``: how fresh the list of agents is kept."""

    ttl_s: float = Field(300.0, gt=0)
    refresh_s: float = Field(60.0, gt=0)
    tag: str | None = None


class HookTable(_Table):
    """``[hooks]``: what registries send to the hub."""

    token_env: str | None = None


class RoutingTable(_Table):
    """``[routing]``: who gets a call that several agents could take."""

    strategy: Literal["best", "first", "round-robin", "random", "least-connections"] = "best"


class WorkflowTable(_Table):
    """``[workflows]``: where custom ones are read from."""

    directory: Path | None = None


class RunTable(_Table):
    """``[runs]``: how long ended runs are kept, when a node counts as dead, how much one does at once."""

    lease_s: float = Field(15.0, ge=1)
    concurrency: int = Field(100, ge=1)
    keep: int = Field(1000, ge=1)
    keep_days: float = Field(30.0, gt=0)


class RegistryTable(_Table):
    """``[registry.NAME]``: how the registry at ``url`` is asked, wherever that url is named."""

    url: str
    mirrors: tuple[str, ...] = ()
    ca_file: Path | None = None
    repositories: tuple[str, ...] = ()
    mesh: bool = False


class _Environment(EnvSettingsSource):
    """The ``RETINUE_*`` variables, less ``RETINUE_HUB``: that is the hub to join, no ``[hub]`` table."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {name: value for name, value in self.env_vars.items() if name != "retinue_hub"}


class Settings(BaseSettings):
    """Everything that a person may set; nothing below this layer sees it whole."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_prefix="RETINUE_", env_nested_delimiter="__"
    )

    registries: tuple[str, ...] = ()
    allow_private_urls: bool = True
    hub: HubTable = HubTable()
    agents: tuple[AgentTable, ...] = ()
    timeouts: TimeoutTable = TimeoutTable()
    trace: TraceTable = TraceTable()
    limits: LimitTable = LimitTable()
    doors: DoorTable = DoorTable()
    execute: ExecuteTable = ExecuteTable()
    mcp: McpTable = McpTable()
    directory: DirectoryTable = DirectoryTable()
    hooks: HookTable = HookTable()
    routing: RoutingTable = RoutingTable()
    database: str | None = None
    runs: RunTable = RunTable()
    auth: AuthTable = AuthTable()
    workflows: WorkflowTable = WorkflowTable()
    registry: Mapping[str, RegistryTable] = {}
    access: Mapping[str, AccessTable] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Environment(settings_cls), TomlConfigSettingsSource(settings_cls)


def find_settings_file(start: Path) -> Path | None:
    """The nearest ``retinue.toml`` upward of ``start``."""
    return next((f / FILE for f in (start, *start.parents) if (f / FILE).is_file()), None)


def load_settings(flags: Mapping[str, Any] | None = None, *, start: Path | None = None) -> Settings:
    """The settings of this process; raises InvalidSettingError naming the first wrong place."""
    file = find_settings_file(start or Path.cwd())

    class FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=file, extra="forbid" if file else "ignore")

    try:
        return FromFile(**dict(flags or {}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = f"{first['msg']}; found {_shape(first.get('input'))}"
        if first["type"] == "value_error":  # of a table whose fields do not go together
            problem = first["msg"].removeprefix("Value error, ")
        raise InvalidSettingError(
            _place(first["loc"], file, flags or {}),
            "unknown key" if first["type"] == "extra_forbidden" else problem,
            remedy="see docs/settings.md",
        ) from error
    except SettingsError as error:
        raise InvalidSettingError(
            "RETINUE_* environment", str(error), remedy="name one field each, such as RETINUE_HUB__PORT=9000"
        ) from error
    except ValueError as error:
        raise InvalidSettingError(str(file or "settings"), str(error), remedy="mend the file") from error


def environment() -> Mapping[str, str]:
    """The environment of this process."""
    return os.environ


def _place(location: tuple[int | str, ...], file: Path | None, flags: Mapping[str, Any]) -> str:
    """Where the wrong value stands; flags win over the environment, and that over the file."""
    dotted = ".".join(str(at) for at in location) or "settings"
    variables = ["RETINUE_" + "__".join(map(str, location[:n])).upper() for n in range(1, len(location) + 1)]
    if location and location[0] in flags:
        return dotted
    if variable := next((v for v in variables if v in os.environ and v != "RETINUE_HUB"), None):
        return variable
    return f"{file}: {dotted}" if file else dotted


def _is_guarded(url: str) -> bool:
    """Whether nobody on the way can change what comes from there."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)


_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


def _shape(value: Any) -> str:
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    return type(value).__name__
