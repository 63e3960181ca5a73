"""What a person agrees to before a team runs: its signer, programs, hosts, secrets, access and models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from retinue.core.errors import RetinueError
from retinue.settings_tables import AccessTable
from retinue.team.definition import TeamImport
from retinue.team.package import Team
from retinue.team.vendored import describe_vendored


@dataclass(frozen=True, slots=True)
class Consent:
    """The facts about one digest that are shown before anything of it is unpacked."""

    name: str
    version: str
    digest: str
    signer: str
    programs: tuple[str, ...]
    hosts: tuple[str, ...]
    secrets: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Name, text for the person, and who gets the value."""
    env: tuple[str, ...]
    """The variables that the team sets for its agents, imports and models, with their values."""
    access: tuple[str, ...]
    models: tuple[str, ...]
    policies: tuple[str, ...]
    schedules: tuple[str, ...]
    files: int
    size_bytes: int
    vendored: str = ""
    """The packages that the digest has, as text; "" for none."""
    changes: tuple[str, ...] = ()
    """Lines about the difference to what runs."""

    def as_json(self) -> dict[str, Any]:
        """The facts as JSON."""
        return {
            "team": self.name,
            "version": self.version,
            "digest": self.digest,
            "signed_by": self.signer,
            "programs": list(self.programs),
            "hosts": list(self.hosts),
            "secrets": [
                {"name": name, "text": text, "receivers": list(users)} for name, text, users in self.secrets
            ],
            "env": list(self.env),
            "access": list(self.access),
            "models": list(self.models),
            "policies": list(self.policies),
            "schedules": list(self.schedules),
            "files": self.files,
            "size_bytes": self.size_bytes,
            "vendored": self.vendored,
            "changes": list(self.changes),
        }

    def render(self) -> list[str]:
        """The facts as lines of text."""
        lines = [
            f"{self.name} {self.version}  {self.digest}",
            f"  signed by   {self.signer or 'nobody whom this state trusts'}",
            f"  size        {self.files} files, {self.size_bytes:,} bytes",
        ]
        if self.vendored:
            lines.append(f"  packages    {self.vendored}")
        for heading, rows in (
            ("runs", self.programs),
            ("hosts", self.hosts),
            ("models", self.models),
            ("env", self.env),
            ("access", self.access),
            ("policies", self.policies),
            ("schedules", self.schedules),
        ):
            lines += [f"  {heading if not index else '':<11} {row}" for index, row in enumerate(rows)]
        for index, (name, text, users) in enumerate(self.secrets):
            receivers = f" → {', '.join(users)}" if users else " → nobody"
            lines.append(f"  {'secrets' if not index else '':<11} {name}: {text}{receivers}")
        if self.changes:
            lines += ["  different from what runs:", *(f"    {line}" for line in self.changes)]
        lines.append("  A signature is no sandbox: these programs run with the rights of this user.")
        return lines


def describe_consent(
    team: Team, signer: str, changes: Sequence[str] = (), documents: Mapping[str, bytes] | None = None
) -> Consent:
    """What running the team means; ``changes`` are lines about the difference to what runs.

    ``documents`` are those of `list_documents` by path.
    """
    definition = team.definition
    users = definition.list_secret_users()
    return Consent(
        team.name,
        team.version,
        team.digest,
        signer,
        tuple(list_programs(team)),
        tuple(list_hosts(team, documents or {})),
        tuple((name, text, tuple(users.get(name, ()))) for name, text in sorted(definition.secrets.items())),
        tuple(f"{name}={value}" for name, value in list_env(team).items()),
        tuple(list_access(team)),
        tuple(list_models(team)),
        tuple(f"{path} (binds this team only)" for path in team.policies),
        tuple(list_schedules(team)),
        len(team.files),
        team.size_bytes,
        describe_vendored(team.files),
        tuple(changes),
    )


def list_programs(team: Team) -> list[str]:
    """The programs that run, with the locks that they run with."""
    programs = []
    for agent in team.definition.agents:
        locked = team.lock.agents.get(agent.target)
        name = locked.name if locked else agent.target
        packages = " with the packages of its lock" if locked and locked.lock else ""
        kind = "agent in Markdown" if agent.is_markdown else "Python agent"
        programs.append(f"{name} ({kind} {agent.target}){packages}")
    for name, table in team.definition.imports.items():
        if table.package is not None:
            locked_import = team.lock.imports.get(name)
            count = locked_import.packages if locked_import else 0
            kind = "npm" if table.npm else "PyPI"
            programs.append(
                f"{name} (MCP server {table.package} of {kind}, {count} packages){_describe_command(table)}"
            )
    return programs


def _describe_command(table: TeamImport) -> str:
    program = f" program {table.bin}" if table.bin else ""
    args = f" args {json.dumps(table.args)}" if table.args else ""
    return program + args


def list_hosts(team: Team, documents: Mapping[str, bytes]) -> list[str]:
    """The hosts that imports and models name; programs may reach any other.

    ``documents`` are the files of `list_documents` by path, whose servers an API without ``server`` has.
    """
    addresses = []
    problems = []
    for name, table in team.definition.imports.items():
        addresses += [address for address in (table.url, table.a2a, table.server) if address is not None]
        if table.openapi is not None and table.server is None:
            try:
                addresses += _list_servers(name, table.openapi, documents.get(table.openapi, b""))
            except RetinueError:
                problems.append(f"unknown ones of {name}, because {table.openapi} cannot be read")
    addresses += [table.base_url for table in team.definition.llm.values() if table.base_url is not None]
    return sorted({urlsplit(address).netloc for address in addresses}) + problems


def list_documents(team: Team) -> list[str]:
    """The paths of the documents that say to which hosts their imports send requests."""
    tables = team.definition.imports.values()
    return [table.openapi for table in tables if table.openapi is not None and table.server is None]


def _list_servers(name: str, path: str, content: bytes) -> tuple[str, ...]:
    # as the hub reads it; loaded for teams with such imports only
    from retinue.openapi.codec.api import parse_api
    from retinue.openapi.codec.reader import read_document

    return parse_api(read_document(content, path), name, source=path).servers


def list_env(team: Team) -> dict[str, str]:
    """The variables that the team sets for its programs, as JSON texts by program and name."""
    definition = team.definition
    tables = [
        *((team.lock.agents[agent.target].name, agent.env) for agent in definition.agents),
        *((name, table.env) for name, table in sorted(definition.imports.items())),
        *((name, table.env) for name, table in sorted(definition.llm.items())),
    ]
    return {
        f"{owner} {name}": json.dumps(text, ensure_ascii=False)
        for owner, env in tables
        for name, text in sorted(env.items())
    }


def list_access(team: Team) -> list[str]:
    """The access lists as lines, and each agent that may call everything."""
    rows = []
    tables = team.definition.access
    for name in sorted({*team.agent_names, *tables}):
        table = tables.get(name) or AccessTable()
        if table.receive is not None:
            rows.append(f"{name} is called by {', '.join(table.receive) or 'nobody'}")
        if table.send is not None:
            rows.append(f"{name} calls {', '.join(table.send) or 'nobody'}")
        elif name in team.agent_names:
            rows.append(f"{name} calls everything")
    return rows


def list_models(team: Team) -> list[str]:
    """The models as lines, with the budget of the team; no hash pins a model."""
    limits = team.definition.budget.model_dump(exclude_none=True)
    budget = [f"together: {', '.join(f'{key} {limit:,}' for key, limit in limits.items())}"] if limits else []
    models = [
        f"{name}: {table.provider or 'any provider'} {table.model} (not pinned by a hash)"
        for name, table in sorted(team.definition.llm.items())
    ]
    return [*models, *budget]


def list_schedules(team: Team) -> list[str]:
    """What starts workflows by itself, as lines."""
    return [
        f"{schedule.workflow} {schedule.cron or schedule.every or 'as the workflow says'}, "
        "with the rights of whoever starts the team"
        for schedule in team.definition.schedules
    ]
