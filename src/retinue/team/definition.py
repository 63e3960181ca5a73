"""``team.toml``: what a team has, in the words of ``retinue.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from retinue.core.errors import InvalidSettingError
from retinue.core.json_values import name_shape
from retinue.core.text import suggest
from retinue.settings_tables import AccessTable, LlmTable
from retinue.team.fields import (
    INSTALLED,
    Env,
    Glob,
    Name,
    Port,
    Requirement,
    Secret,
    TeamName,
    TeamPath,
    Version,
    check_env,
    check_variable,
)
from retinue.team.files import find_path_problem

FILE = "team.toml"
LOCK_FILE = "team.lock"

MAX_DEFINITION_BYTES = 256 * 1024

OF_THE_MACHINE = frozenset(
    {
        *(
            "auth",
            "database",
            "signatures",
            "doors",
            "hub",
            "registries",
            "registry",
            "limits",
            "logs",
            "audit",
        ),
        *("discovery", "hooks", "metrics", "worker", "parts", "runs", "artifacts", "directory", "trace"),
        *("allow_private_urls", "timeouts", "guards", "messages", "mcp", "a2a", "execute", "routing"),
    }
)
"""Tables of ``retinue.toml`` that belong to the machine, so that a team never changes them."""

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NPM = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*@\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?")
_PYPI = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?==[0-9][0-9A-Za-z.+!-]*")

DATA = "DATA"
"""``${DATA}`` stands for the folder in which the team keeps its files on this machine."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TeamAgent(_Table):
    """One ``[[agents]]`` entry: a Python target in a folder of its own, or an agent in Markdown.

    ``${NAME}`` in ``env`` stands for a secret of the team, ``${DATA}`` for its folder on the machine.
    """

    target: str
    env: Env = {}
    port: Port | None = None

    @property
    def path(self) -> str:
        """The file of the target, without the name of an object in it."""
        head, colon, tail = self.target.rpartition(":")
        return head if colon and tail.isidentifier() else self.target

    @property
    def is_markdown(self) -> bool:
        """Whether the target is an agent in Markdown."""
        return self.path.endswith(".md")

    @property
    def folder(self) -> str:
        """The folder of the target; "" where it lies beside ``team.toml``."""
        return self.path.rpartition("/")[0]

    @model_validator(mode="after")
    def _is_file(self) -> Self:
        if problem := find_path_problem(self.path):
            raise ValueError(f"the path {problem}; write a path below the folder of team.toml")
        if not self.path.endswith((".py", ".json", ".md")):
            raise ValueError(
                "target is a file of the team (agent.py, agent.py:name, agent.json or agent.md); "
                "a module of an installed package is not in the digest"
            )
        if not self.is_markdown and not self.folder:
            raise ValueError(
                "a Python agent has a folder of its own, which is packed whole, such as agents/word/agent.py"
            )
        return self


class TeamImport(_Table):
    """``[imports.NAME]``: an MCP server from npm or PyPI in one exact version, an HTTP API whose OpenAPI
    document is a file of the team, an MCP server at a ``url``, or an agent that speaks ``a2a`` at a URL.
    """

    npm: str | None = None
    pypi: str | None = None
    openapi: TeamPath | None = None
    url: str | None = None
    a2a: str | None = None
    bin: str | None = None
    args: tuple[str, ...] = ()
    env: Env = {}
    headers: Mapping[str, str] = {}
    server: str | None = None
    start_s: float = Field(60.0, gt=0, le=600)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(source is not None for source in (self.npm, self.pypi, self.openapi, self.url, self.a2a)) != 1:
            raise ValueError("an import has one of npm, pypi, openapi, url and a2a")
        if self.npm is not None and not _NPM.fullmatch(self.npm):
            raise ValueError('npm names one exact version: npm = "PACKAGE@1.2.3"')
        if self.pypi is not None and not _PYPI.fullmatch(self.pypi):
            raise ValueError('pypi names one exact version: pypi = "PACKAGE==1.2.3"')
        if any({*_PLACEHOLDER.findall(text)} - {DATA} for text in self.args):
            raise ValueError("args have no secrets, because other users see them; pass them in env")
        if self.bin is not None and not _PROGRAM.fullmatch(self.bin):
            raise ValueError("bin is the name of a program of the package, not a path; write the plain name")
        for address in (self.url, self.a2a, self.server):
            if address is not None and not address.startswith(("http://", "https://")):
                raise ValueError("an address begins with http:// or https://")
        return self

    @property
    def package(self) -> str | None:
        """The package with its version; None for an import that is not a program."""
        return self.npm or self.pypi

    @property
    def package_name(self) -> str:
        """The name of the package without its version."""
        name = (self.npm or "").rpartition("@")[0] if self.npm else (self.pypi or "").partition("==")[0]
        return name.partition("[")[0]


def _check_model(table: LlmTable) -> LlmTable:
    if table.command is not None or table.folder is not None:
        raise ValueError("command and folder belong to the machine, not to a team")
    if table.model is None or table.model.endswith("latest"):
        raise ValueError("name the exact model, because a provider has no hash of it")
    check_env(table.env)
    if table.api_key_env is not None:
        check_variable(table.api_key_env)
    return table


TeamModel = Annotated[LlmTable, AfterValidator(_check_model)]


class TeamFiles(_Table):
    """``[workflows]``: globs below the folder of ``team.toml``."""

    files: tuple[Glob, ...] = ()


class CheckCall(_Table):
    """``[[check.calls]]``: a call that must succeed and, with ``result``, give exactly this value."""

    skill: str
    agent: str | None = None
    arguments: Mapping[str, Any] = {}
    result: Any = None


class TeamCheck(_Table):
    """``[check]``: the calls and the workflow that must pass before the team serves."""

    workflow: str | None = None
    input: Mapping[str, Any] = {}
    calls: tuple[CheckCall, ...] = ()
    timeout_s: float = Field(60.0, gt=0, le=3600)


class BudgetTable(_Table):
    """``[budget]``: what all models of the team together may spend on one day (UTC); None = no limit."""

    max_tokens_per_day: int | None = Field(None, ge=1)
    max_cost_per_day: float | None = Field(None, gt=0)


class RolloutTable(_Table):
    """``[rollout]``: how a new digest takes over from the one that runs.

    ``steps`` are the shares of the new chains of calls in per cent, each of which is held for ``hold_s``.
    Runs of the digest before have ``drain_s`` to end.
    """

    steps: tuple[Annotated[int, Field(ge=1, le=100)], ...] = (5, 25, 100)
    hold_s: float = Field(30.0, ge=0, le=86_400)
    drain_s: float = Field(3600.0, ge=0, le=30 * 86_400)

    @model_validator(mode="after")
    def _rises_to_all(self) -> Self:
        if not self.steps or self.steps[-1] != 100 or list(self.steps) != sorted({*self.steps}):
            raise ValueError("steps rise to 100, such as [5, 25, 100]")
        return self


class TeamSchedule(_Table):
    """``[[schedules]]``: when a workflow of the team starts by itself, in the words of its key ``schedule``.

    What is not given is what the workflow says. ``name`` tells two schedules of one workflow apart.
    """

    workflow: str
    name: Name | None = None
    cron: str | None = None
    every: str | None = None
    timezone: str | None = None
    input: Any = None
    missed: Literal["skip", "once", "all"] | None = None
    overlap: Literal["skip", "queue", "cancel"] | None = None

    @property
    def rule(self) -> dict[str, Any]:
        """The keys of ``schedule`` that are given."""
        fields = self.model_dump(mode="json", exclude={"workflow", "name"})
        return {key: value for key, value in fields.items() if value is not None}

    def name_in(self, team: str) -> str:
        """The name of the schedule in the mesh: ``TEAM.NAME``."""
        return f"{team}.{self.name or self.workflow}"


MAX_SCHEDULE_NAME = 64


class TeamDefinition(_Table):
    """All of ``team.toml``."""

    name: TeamName
    version: Version
    description: str = ""
    requires: Requirement | None = None
    data: int = Field(1, ge=1)
    agents: tuple[TeamAgent, ...] = ()
    imports: Mapping[Name, TeamImport] = {}
    llm: Mapping[str, TeamModel] = {}
    budget: BudgetTable = BudgetTable()
    workflows: TeamFiles = TeamFiles(files=("workflows/*.yaml",))
    access: Mapping[str, AccessTable] = {}
    secrets: Mapping[Secret, str] = {}
    schedules: tuple[TeamSchedule, ...] = ()
    check: TeamCheck = TeamCheck()
    rollout: RolloutTable = RolloutTable()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.agents and not self.imports:
            raise ValueError("a team has at least one agent or import; add [[agents]] with a target")
        targets = [agent.target for agent in self.agents]
        if len({*targets}) < len(targets):
            raise ValueError("two entries of [[agents]] have the same target; remove one")
        if self.budget != BudgetTable() and not self.llm:
            raise ValueError("[budget] limits the models of the team, and it has none; add [llm.NAME]")
        if imported := sorted({*self.access} & {*self.imports}):
            raise ValueError(
                f"access.{imported[0]} is an import, and access lists bind agents; "
                f"write send in the tables of its callers, or a policy in policies/"
            )
        self._check_schedules()
        for user, texts in self.list_texts():
            if any("$" in _PLACEHOLDER.sub("", text) for text in texts):
                raise ValueError(
                    f"{user} has a $ outside ${{NAME}}; write ${{NAME}} with a name of [secrets]"
                )
        for secret, users in self.list_secret_users().items():
            if secret not in self.secrets:
                raise ValueError(
                    f"{users[0]} uses ${{{secret}}}, which [secrets] does not declare; "
                    f'add {secret} = "what it is" to [secrets]'
                )
        return self

    def _check_schedules(self) -> None:
        names = [schedule.name_in(self.name) for schedule in self.schedules]
        if len({*names}) < len(names):
            raise ValueError("two entries of [[schedules]] have one name; give each a name")
        if long := next((name for name in names if len(name) > MAX_SCHEDULE_NAME), None):
            raise ValueError(
                f"the schedule {long} has over {MAX_SCHEDULE_NAME} characters; give it a shorter name"
            )

    def list_secret_users(self) -> dict[str, list[str]]:
        """Which agents, imports and models get each secret, by the names that they have in the file."""
        users: dict[str, list[str]] = {}
        for user, texts in self.list_texts():
            for text in texts:
                for variable in _PLACEHOLDER.findall(text):
                    if variable != DATA and user not in users.setdefault(variable, []):
                        users[variable].append(user)
        for name, table in self.llm.items():
            if table.api_key_env is not None:
                users.setdefault(table.api_key_env, []).append(f"llm.{name}")
        return users

    def list_texts(self) -> list[tuple[str, tuple[str, ...]]]:
        """The texts that may have placeholders, by the name of their agent, import or model in the file."""
        agents = [(agent.target, tuple(agent.env.values())) for agent in self.agents]
        imports = [
            (f"imports.{name}", (*table.args, *table.env.values(), *table.headers.values()))
            for name, table in self.imports.items()
        ]
        models = [(f"llm.{name}", tuple(table.env.values())) for name, table in self.llm.items()]
        return [*agents, *imports, *models]

    def as_json(self) -> dict[str, Any]:
        """The definition as JSON, without the fields that have their defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


def parse_definition(content: bytes, *, where: str = FILE) -> TeamDefinition:
    """The definition in the bytes of a ``team.toml``.

    Raises InvalidSettingError, which names the field, the shape of its value and the remedy.
    """
    if len(content) > MAX_DEFINITION_BYTES:
        raise InvalidSettingError(
            where, f"it is over {MAX_DEFINITION_BYTES:,} bytes", remedy="make it smaller"
        )
    try:
        document = tomllib.loads(content.decode())
    except ValueError as error:  # also UnicodeDecodeError
        raise InvalidSettingError(where, f"it is not TOML: {error}", remedy="correct the file") from error
    return read_definition(document, where=where)


def read_definition(document: Any, *, where: str, is_installed: bool = False) -> TeamDefinition:
    """The definition in a parsed document; names that only earlier versions accepted may be installed.

    Raises InvalidSettingError.
    """
    try:
        return TeamDefinition.model_validate(document, context={INSTALLED: is_installed})
    except ValidationError as error:
        problems = error.errors(include_url=False)
    # a misspelt key explains why another one is missing
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    place = ".".join(str(at) for at in first["loc"] if at != "[key]")
    field = f"{where}: {place}" if place else where
    if first["type"] == "extra_forbidden":
        raise InvalidSettingError(field, "unknown key", remedy=_suggest(str(first["loc"][-1]), first["loc"]))
    if first["type"] == "value_error":
        problem, _, remedy = first["msg"].removeprefix("Value error, ").partition("; ")
        raise InvalidSettingError(field, problem, remedy=remedy or "correct the file")
    message = first["msg"].replace("a valid tuple", "a list").replace("a valid dictionary", "a table")
    if first["type"] == "missing":
        raise InvalidSettingError(field, "it is missing", remedy=f"add {place} to {where}")
    problem = f"{message}; found {name_shape(first.get('input'))}"
    raise InvalidSettingError(field, problem, remedy="retinue docs teams describes team.toml")


def _suggest(key: str, location: tuple[int | str, ...]) -> str:
    if len(location) == 1 and key in OF_THE_MACHINE:
        return f"{key} belongs to the machine: set it in retinue.toml"
    known = list(TeamDefinition.model_fields)
    for table, name in (
        (TeamAgent, "agents"),
        (TeamImport, "imports"),
        (TeamCheck, "check"),
        (RolloutTable, "rollout"),
        (BudgetTable, "budget"),
    ):
        if location[0] == name and len(location) > 1:
            known = list(table.model_fields)
    near = suggest(key, known, limit=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
