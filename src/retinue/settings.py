"""Settings of one process, as one frozen object.

Sources, later ones win: ``retinue.toml``, ``RETINUE_*`` environment variables, command-line flags.
The error for an invalid value names its location, the shape of the value found and the remedy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from retinue.core.errors import InvalidSettingError
from retinue.core.text import suggest
from retinue.parts.installed import KNOWN_PARTS, explain_missing, find_installed_parts
from retinue.parts.process import Kind
from retinue.plugins import PARTS, list_plugins
from retinue.settings_tables import (
    A2aTable,
    AccessTable,
    AgentTable,
    ApprovalsTable,
    ArtifactTable,
    AuditTable,
    AuthTable,
    DirectoryTable,
    DiscoveryTable,
    EndpointTable,
    ExamTable,
    ExecuteTable,
    GuardTable,
    HistoryTable,
    HookTable,
    HubTable,
    ImportsTable,
    LimitTable,
    LlmTable,
    LogTable,
    McpTable,
    MessageTable,
    MetricsTable,
    OwnersHints,
    PartsTable,
    PolicyTable,
    ReceiptsTable,
    RegistryTable,
    RoutingTable,
    RunTable,
    SignatureTable,
    TimeoutTable,
    TraceTable,
    WorkerTable,
    WorkflowTable,
)

FILE = "retinue.toml"

_DATABASES = frozenset({"postgresql", "postgres", "postgresql+psycopg", "sqlite"})


def _check_database(url: str) -> str:
    if url.partition("://")[0] not in _DATABASES:
        raise ValueError(
            "the runs are stored in Postgres (postgresql://user@host/name) or in the state folder"
        )
    return url


class _Environment(EnvSettingsSource):
    """The ``RETINUE_*`` variables without ``RETINUE_HUB``, which is the hub to join, not ``[hub]``."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {name: value for name, value in self.env_vars.items() if name != "retinue_hub"}


class _Sources(BaseSettings):
    """Settings from flags, then from the environment, then from a file."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        env_prefix="RETINUE_",
        env_nested_delimiter="__",
        defer_build=True,  # `load_settings` builds a subclass
    )

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


class _Switches(_Sources):
    """The settings that are read before any part is imported."""

    parts: PartsTable = PartsTable()


class Settings(_Sources):
    """All settings. Composition roots read them; modules below receive single values."""

    registries: tuple[str, ...] = ()
    allow_private_urls: bool = True
    hub: HubTable = HubTable()
    agents: tuple[AgentTable, ...] = ()
    timeouts: TimeoutTable = TimeoutTable()
    trace: TraceTable = TraceTable()
    limits: LimitTable = LimitTable()
    logs: LogTable = LogTable()
    audit: AuditTable = AuditTable()
    history: HistoryTable = HistoryTable()
    exam: ExamTable = ExamTable()
    receipts: ReceiptsTable = ReceiptsTable()
    doors: EndpointTable = EndpointTable()
    execute: ExecuteTable = ExecuteTable()
    mcp: McpTable = McpTable()
    messages: MessageTable = MessageTable()
    directory: DirectoryTable = DirectoryTable()
    signatures: SignatureTable = SignatureTable()
    discovery: DiscoveryTable = DiscoveryTable()
    hooks: HookTable = HookTable()
    metrics: MetricsTable = MetricsTable()
    worker: WorkerTable = WorkerTable()
    routing: RoutingTable = RoutingTable()
    imports: ImportsTable = ImportsTable()
    parts: PartsTable = PartsTable()
    llm: Mapping[str, LlmTable] = {}
    database: Annotated[str, AfterValidator(_check_database)] | None = None
    runs: RunTable = RunTable()
    artifacts: ArtifactTable = ArtifactTable()
    a2a: A2aTable = A2aTable()
    auth: AuthTable = AuthTable()
    workflows: WorkflowTable = WorkflowTable()
    registry: Mapping[str, RegistryTable] = {}
    access: Mapping[str, AccessTable] = {}
    policy: PolicyTable = PolicyTable()
    approvals: ApprovalsTable = ApprovalsTable()
    guards: Mapping[str, GuardTable] = {}

    @property
    def owners_hints(self) -> OwnersHints:
        """The hints of the tables of imports, and after them those of the hub, by globs ``AGENT/SKILL``."""
        imported = {
            f"{name}/{glob}": hints
            for name, table in self.imports.servers.items()
            for glob, hints in table.hints.items()
        }
        return {**imported, **self.hub.hints}


def find_settings_file(start: Path) -> Path | None:
    """Find the nearest ``retinue.toml`` in ``start`` or a folder above it."""
    return next((f / FILE for f in (start, *start.parents) if (f / FILE).is_file()), None)


def load_settings(
    flags: Mapping[str, Any] | None = None, *, start: Path | None = None, with_parts: bool = True
) -> Settings:
    """Load the settings of this process.

    ``start`` is the folder where the search for ``retinue.toml`` begins (default: working directory). Without
    ``with_parts`` no part of another distribution is imported: a process that has none accepts their tables
    as they are.
    Raises InvalidSettingError with the location of the first invalid value.
    """
    file = find_settings_file(start or Path.cwd())
    fields = _read_part_fields(_read_off(file, flags or {})) if with_parts else _name_part_fields()

    try:
        settings = _from_file(file, fields)(**dict(flags or {}))
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # a misspelt key explains why another one is missing
        first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
        problem = f"{_name_shapes(first['msg'])}; found {_shape(first.get('input'))}"
        remedy = "retinue docs settings lists the settings"
        if first["type"] == "value_error":  # raised by a validator over several fields
            problem = first["msg"].removeprefix("Value error, ")
        elif first["type"] == "extra_forbidden":
            problem = "unknown key"
            remedy = _suggest_key(first["loc"], first.get("input"), fields)
        raise InvalidSettingError(_locate(first["loc"], file, flags or {}), problem, remedy=remedy) from error
    except SettingsError as error:
        raise InvalidSettingError(
            "RETINUE_* environment",
            str(error),
            remedy="set one field per variable, for example RETINUE_HUB__PORT=9000",
        ) from error
    except ValueError as error:
        raise InvalidSettingError(str(file or "settings"), str(error), remedy="correct the file") from error
    if unused := {*settings.parts.off}.intersection(flags or {}):
        name = min(unused)
        raise InvalidSettingError(
            "parts.off",
            f"part {name} is switched off",
            remedy=f"leave out its options, or remove {name} from parts.off",
        )
    return settings


def settings_class() -> type[Settings]:
    """The settings with the tables of installed parts, without a file."""
    return _from_file(None, _read_part_fields())


_Fields = dict[str, tuple[Any, object]]
"""Type and default of settings by their names."""


def _from_file(file: Path | None, fields: _Fields) -> type[Settings]:
    """The settings as a file may hold them, with the tables of installed parts."""
    annotations = {name: annotation for name, (annotation, _) in fields.items()}
    defaults = {name: default for name, (_, default) in fields.items()}
    config = SettingsConfigDict(toml_file=file, extra="forbid" if file else "ignore")
    return type("FromFile", (Settings,), {**defaults, "__annotations__": annotations, "model_config": config})


def _read_off(file: Path | None, flags: Mapping[str, Any]) -> Collection[str]:
    """The parts that are switched off; () if the setting is wrong, which the reading of all refuses."""
    if not list_plugins(PARTS):
        return ()
    config = SettingsConfigDict(toml_file=file)
    values = {"parts": flags["parts"]} if "parts" in flags else {}
    try:
        switches: _Switches = type("FromFile", (_Switches,), {"model_config": config})(**values)
    except (ValidationError, SettingsError, ValueError):
        return ()
    return switches.parts.off


def _read_part_fields(off: Collection[str] = ()) -> _Fields:
    """The tables of installed parts; one whose part is missing, or switched off, is accepted as it is."""
    tables: _Fields = {
        part.name: (part.table, part.table())
        for part in find_installed_parts(off).parts
        if part.table is not None
    }
    return {**_name_part_fields(), **tables}


def _name_part_fields() -> _Fields:
    """A table of any content for each part that is known by name; nothing is imported."""
    names = {*KNOWN_PARTS, *(plugin.name for plugin in list_plugins(PARTS))}
    return {name: (Mapping[str, Any], {}) for name in names if name not in Settings.model_fields}


def find_missing_parts(settings: Settings, kind: Kind | None = None) -> Mapping[str, InvalidSettingError]:
    """By name, why parts are missing: they cannot be used, or have a table but no distribution.

    A process of one ``kind`` misses a part only if the table would let a process of this kind open it.
    """
    refused = find_installed_parts(settings.parts.off).refused
    read = ((name, getattr(settings, name, None)) for name in KNOWN_PARTS)
    # the table of an installed part is an object of its class
    tables = {name: table for name, table in read if table and isinstance(table, Mapping)}
    needed = {
        *refused,
        *(name for name, table in tables.items() if kind is None or KNOWN_PARTS[name].is_wanted(table, kind)),
    }
    missing = sorted(needed - {*settings.parts.off})
    reasons = {name: refused.get(name) or explain_missing(name) for name in missing}
    return {name: error for name, error in reasons.items() if error is not None}


def _suggest_key(location: tuple[int | str, ...], value: object, fields: _Fields) -> str:
    """The remedy for an unknown key; an unknown table may be that of a part that is not installed."""
    key = str(location[-1])
    near = suggest(key, _known_keys(location[:-1], fields), limit=1)
    remedies = [f"did you mean {near[0]}?"] if near else []
    if len(location) == 1 and isinstance(value, Mapping):
        remedies.append(f"if a part brings [{key}], install its distribution, or remove the table")
    return " — ".join(remedies) or "retinue docs settings lists the settings"


def _known_keys(location: tuple[int | str, ...], fields: _Fields) -> list[str]:
    """The keys of the table at this place; [] for an unknown table."""
    table: type[BaseModel] = _from_file(None, fields)
    for part in location:
        field = table.model_fields.get(part) if isinstance(part, str) else None
        if field is None:  # the index of a list, or the name of one of several tables
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not models:
            return []
        table = models[0]
    return list(table.model_fields)


def environment() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ


def _locate(location: tuple[int | str, ...], file: Path | None, flags: Mapping[str, Any]) -> str:
    """Locate an invalid value: flags win over the environment, the environment over the file."""
    dotted = ".".join(str(at) for at in location) or "settings"
    variables = ["RETINUE_" + "__".join(map(str, location[:n])).upper() for n in range(1, len(location) + 1)]
    if location and location[0] in flags:
        return dotted
    if variable := next((v for v in variables if v in os.environ and v != "RETINUE_HUB"), None):
        return variable
    return f"{file}: {dotted}" if file else dotted


def _name_shapes(text: str) -> str:
    """A message of pydantic with the words of TOML for a list and a table, without the names of classes."""
    named = text.replace("a valid tuple", "a list")
    return re.sub(r"a valid dictionary( or instance of \w+)?", "a table", named)


def _shape(value: Any) -> str:
    if isinstance(value, str):
        return f"a string of {len(value)} character{'s' * (len(value) != 1)}"
    return _NAMES.get(type(value), type(value).__name__)


_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "a list",
    tuple: "a list",
    dict: "a table",
    type(None): "nothing",
}
