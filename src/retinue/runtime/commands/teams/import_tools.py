"""Starts the program of an import once, and reads its tools: for the lock, and before a team serves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retinue.core.errors import InvalidSettingError, RetinueError, TeamRefusedError
from retinue.runtime.teams.programs import import_table
from retinue.runtime.teams.store import TeamStore
from retinue.team.definition import DATA, TeamImport
from retinue.team.lock import LockedSkill
from retinue.team.package import Team


async def read_tools(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    own: Mapping[str, str],
    folder: Path,
    *,
    within_s: float,
) -> tuple[LockedSkill, ...]:
    """The tools of an MCP server, sorted by name; ``own`` is the environment of this process.

    Raises InvalidSettingError for a program that does not answer.
    """
    # loaded for teams with imports only
    from retinue.mcp.stdio.server_program import ServerProgram
    from retinue.mcp.upstream.flood import FloodMeter
    from retinue.mcp.upstream.session import ServerSession

    program = ServerProgram(
        name, tuple(command), dict(environment), own=dict(own), folder=folder, flood=FloodMeter()
    )
    try:
        async with asyncio.timeout(within_s):
            await program.open()
            session = ServerSession(name, program, version("retinue"))
            await session.start()
            lists = await session.read_lists()
    except TimeoutError:
        problem = f"it did not answer within {within_s:g} s"
        raise InvalidSettingError(f"imports.{name}", problem, remedy="raise its start_s") from None
    except RetinueError as error:
        remedy = "set the secrets that it needs, and correct its args"
        raise InvalidSettingError(f"imports.{name}", error.message, remedy=remedy) from error
    finally:
        await program.aclose()
    return tuple(sorted(map(_locked, lists.tools), key=lambda tool: tool.id))


def check_tools(team: str, name: str, locked: Sequence[LockedSkill], offered: Sequence[LockedSkill]) -> None:
    """Raise TeamRefusedError unless an import offers the tools that are locked, with their schemas."""
    before = {tool.id: tool for tool in locked}
    after = {tool.id: tool for tool in offered}
    differing = sorted(tool for tool in before.keys() | after.keys() if before.get(tool) != after.get(tool))
    if differing:
        problem = f"the import {name} offers another {differing[0]} than the one that is locked"
        remedy = "do not run it; its publisher may lock it again"
        raise TeamRefusedError("tools_differ", team, problem, remedy=remedy)


async def check_imports(store: TeamStore, team: Team, values: Mapping[str, str]) -> None:
    """Start the program of each import once, and compare its tools with the locked ones.

    ``values`` are those of the secrets of the team.
    """
    folder = store.data_folder(team.name)
    texts = {**values, DATA: str(folder)}

    async def check(name: str, table: TeamImport) -> None:
        made = import_table(store, team, name, table, texts)
        command = (made.command or "", *made.args)
        tools = await read_tools(name, command, made.env, os.environ, folder, within_s=table.start_s)
        check_tools(team.name, name, team.lock.imports[name].tools, tools)

    try:
        async with asyncio.TaskGroup() as group:
            for name, table in team.definition.imports.items():
                if table.package is not None:
                    group.create_task(check(name, table))
    except* RetinueError as errors:
        raise errors.exceptions[0] from None


def _locked(tool: Mapping[str, Any]) -> LockedSkill:
    schema, output = tool.get("inputSchema"), tool.get("outputSchema")
    return LockedSkill(
        id=str(tool.get("name", "")),
        description=str(tool.get("description") or ""),
        input_schema=schema if isinstance(schema, Mapping) else None,
        output_schema=output if isinstance(output, Mapping) else None,
    )
