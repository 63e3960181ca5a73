"""The child agents of a hub: installed agents, configured agents and models, with processes and logs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from retinue.core.errors import ChildFailedError, InvalidSettingError, RetinueError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.observing.metrics import Figures
from retinue.parts.part import AgentsStarted, FirstReading, LivePart, Opened, Part, ReadinessProblem
from retinue.parts.process import Echo, Process, Tables
from retinue.plugins import AGENTS, list_unique_plugins
from retinue.processes.environment import (
    fill_variables,
    find_missing,
    select_for_agent,
    with_home,
)
from retinue.rpc.probe import answers, probe
from retinue.runtime.loading.markdown_files import is_folder_of_agents, list_files
from retinue.runtime.models import FIRST_MODEL_PORT, Models, find_models
from retinue.runtime.observing.log_files import AgentLogs, keep_small, writes_to
from retinue.runtime.parts.policies import catch_up
from retinue.runtime.serving import end_task
from retinue.runtime.supervisor import ChildSpec, OnChange, Probe, Ready, Supervisor
from retinue.settings import Settings
from retinue.settings_tables import AgentTable, LlmTable, LogTable, TimeoutTable
from retinue.storage.state import State
from retinue.web.http_client import HttpClient

HUB = frozenset({"hub"})

IMPORTS_LOOK_S = 1.0
"""The interval at which the hub looks for imported agents in Markdown."""

TEAMS_LOOK_S = 0.2

END_S = 6.0
"""A child that still runs so long after its calls should have ended is killed."""

_log = structlog.get_logger("retinue.children")


class ModelsPart(Part):
    """Finds the language models that this machine can run, and lists the others as agents.

    A ``bare`` hub lists of the others only those that the settings name.
    """

    name = "models"
    kinds = HUB
    gives = Models
    is_required = True

    def __init__(self, *, bare: bool) -> None:
        self._bare = bare

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        models = find_models(process.tables.get(Settings), process.environ, lists_unnamed=not self._bare)
        missing = models.not_started

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            missing.watch(process.get(Directory))
            yield

        yield Opened(product=models, sources=(missing,), invokers={missing.name: missing}, running=running)


class LogsPart(Part):
    """Keeps the output of the agents in files, and the hub's own log small."""

    name = "logs"
    kinds = HUB
    gives = AgentLogs
    runs_after = (FirstReading,)
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        state = process.state
        logs = AgentLogs(state.agent_logs, process.tables.get(LogTable))

        def prepare(tables: Tables) -> Callable[[], None]:
            def apply() -> None:
                logs.limits = tables.get(LogTable)

            return apply

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            keeping = None
            if writes_to(state.hub_log):
                keeping = asyncio.create_task(keep_small(state.hub_log, lambda: logs.limits))
            try:
                yield
            finally:
                if keeping is not None:
                    await end_task(keeping)
                logs.close()

        yield Opened(product=logs, live=(LivePart(("logs.*",), prepare),), running=running)


class SupervisorPart(Part):
    """Starts the agents of the hub as child processes, and starts them again when they end."""

    name = "agents"
    kinds = HUB
    needs = (Models, AgentLogs)
    gives = AgentsStarted
    runs_after = (FirstReading, AgentLogs)
    is_required = True

    def __init__(self, *, bare: bool) -> None:
        self._bare = bare

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        children = _Children(process, bare=self._bare)
        supervisor = children.supervisor

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            following = asyncio.create_task(children.follow_files(), name="imported agents")
            try:
                yield
            finally:
                await end_task(following)
                await supervisor.stop()

        async def on_ready() -> None:
            await children.start()
            await probe_all(process, process.tables.get(TimeoutTable).probe_s)

        async def problems() -> Sequence[ReadinessProblem]:
            return [
                ReadinessProblem("child", child.spec.name, "not running", is_fatal=False)
                for child in supervisor.children
                if not child.is_ready
            ]

        async def figures(figures: Figures) -> None:
            for child in supervisor.children:
                figures.put("retinue_child_up", float(child.is_ready), child.spec.name)
                figures.put("retinue_child_restarts_total", child.restarts, child.spec.name)

        yield Opened(
            product=AgentsStarted(),
            live=(LivePart(("agents",), children.prepare),),
            running=running,
            on_ready=on_ready,
            problems=problems,
            figures=figures,
        )


class _Children:
    """The child processes that the settings name, that are imported, and that are the programs of teams."""

    def __init__(self, process: Process, *, bare: bool) -> None:
        self._process = process
        self._tables = process.tables
        self._models = process.get(Models)
        self._bare = bare
        logs = process.get(AgentLogs)
        self._report = TeamNews(process.state, _report(process.echo, logs))
        probe_s = process.tables.get(TimeoutTable).probe_s
        self.supervisor = Supervisor(_card_probe(process.http, probe_s), self._report, logs.take)

    async def start(self) -> None:
        """Start every child."""
        mend_teams(self._process.state)
        await self.supervisor.start(self._list_specs(self._process.tables))

    def prepare(self, tables: Tables) -> Callable[[], None]:
        """Agents that the settings no longer name are stopped, new ones are started."""
        specs = self._list_specs(tables)

        def apply() -> None:
            self._tables = tables
            self.supervisor.replace_soon(specs)

        return apply

    async def follow_files(self) -> None:
        """Start the imported agents in Markdown with the first of them, and stop them after the last.

        Start and stop the programs of teams.
        """
        before, problem = self._look(), ""
        while True:
            await _wait_for_teams(self._process.state, before[1])
            try:
                if (now := self._look()) != before:
                    await replace_children(self._process, self.supervisor, self._list_specs(self._tables))
                    before = now
                problem = ""
            except Exception as error:  # noqa: BLE001 - no later change would be followed
                if problem != str(error):
                    problem = str(error)
                    _log.error("agents and teams wait to be started; tried again", error=problem)
                await asyncio.sleep(IMPORTS_LOOK_S)

    def _look(self) -> tuple[bool, object]:
        state = self._process.state
        mend_teams(state)
        return bool(list_files(state.agents)), find_teams_change(state)

    def _list_specs(self, tables: Tables) -> list[ChildSpec]:
        state, url = self._process.state, self._process.own_url or ""
        settings = tables.get(Settings)
        environ = with_home(self._process.environ, state.home)
        specs = [
            *child_specs(settings, state, url, self._bare, environ),
            *model_children(self._models, settings, state, url, environ),
            *children_of_teams(state, url, environ),
        ]
        self._report.keep_only(specs)
        stop_within_s = settings.timeouts.leave_s + settings.timeouts.drain_s + END_S
        return [replace(spec, stop_within_s=stop_within_s) for spec in specs]


async def replace_children(process: Process, children: Supervisor, specs: Sequence[ChildSpec]) -> None:
    """Start and stop children, with the policies of a team in force before its programs run.

    Raises a RetinueError while they cannot be in force. Until then children are stopped, and new ones wait.
    """
    try:
        await catch_up(process)
    except RetinueError:
        running = {child.spec.name for child in children.children}
        children.replace_soon([spec for spec in specs if spec.name in running])
        raise
    children.replace_soon(specs)


async def _wait_for_teams(state: State, before: object) -> None:
    """Wait until it is time to look again; a command that waits for the programs of a team waits less."""
    until = time.monotonic() + IMPORTS_LOOK_S
    while True:
        await asyncio.sleep(TEAMS_LOOK_S)
        if time.monotonic() >= until or find_teams_change(state) != before:
            return


async def probe_all(process: Process, timeout_s: float) -> None:
    """Ask every agent of the directory whether it answers."""
    directory = process.get(Directory)
    await directory.ensure_fresh()
    agents = directory.list_entries()
    await probe(directory, process.dispatcher.agent_stats, agents, process.http, timeout_s=timeout_s)


def child_specs(
    settings: Settings, state: State, hub_url: str, bare: bool, environ: Mapping[str, str]
) -> Sequence[ChildSpec]:
    """The configured agents, the imported ones in Markdown and, unless the hub is bare, the installed ones.

    ``environ`` is the environment of the hub. Raises InvalidSettingError when two distributions declare the
    same agent, and when ``env`` of an agent names a variable that is not set.
    """
    common = _own_variables(state, hub_url)
    inherited = select_for_agent(environ)
    specs = []
    for table in map(_open_folder, settings.agents):
        port = () if table.port is None else ("--port", str(table.port))
        arguments = ("serve", table.target, "--host", table.host, *port)
        if table.advertise is not None:
            arguments = (*arguments, "--advertise", table.advertise)
        environment = dict(environ)
        if table.env != "inherit":
            environment = inherited | _fill(f"agents: {table.target}", table.env, environ)
        specs.append(ChildSpec(table.target, arguments, environment | common))
    if list_files(state.agents):
        specs.append(ChildSpec("imported-agents", ("serve", str(state.agents)), inherited | common))
    if not (bare or settings.hub.bare):
        for plugin in list_unique_plugins(AGENTS):
            preferred = ("--port", plugin.qualifier, "--port-may-move") if plugin.qualifier else ()
            specs.append(ChildSpec(plugin.name, ("serve", plugin.target, *preferred), inherited | common))
    return specs


def children_of_teams(state: State, hub_url: str, environ: Mapping[str, str]) -> Sequence[ChildSpec]:
    """The programs of the teams that this state runs."""
    if find_teams_change(state) is None:
        return ()
    from retinue.runtime.teams.programs import list_children  # only states with teams load this

    return [
        ChildSpec(
            child.name,
            child.arguments,
            child.environment,
            program=child.program,
            folder=child.folder,
            overlaps=True,
            facts={"secrets": child.secrets},
        )
        for child in list_children(state, hub_url, environ)
    ]


def mend_teams(state: State) -> None:
    """Put back each team whose command was killed while it started a digest."""
    if find_teams_change(state) is not None:
        from retinue.runtime.teams.programs import mend_teams as mend  # only states with teams load this

        mend(state)


def find_teams_change(state: State) -> object:
    """What changes when a team is started or stopped; None where there never was one."""
    try:
        status = (state.root / "teams" / "teams.json").stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


class TeamNews:
    """Reports as ``report`` and, for the programs of teams, to the commands that wait for them."""

    def __init__(self, state: State, report: OnChange) -> None:
        self._state = state
        self._report = report
        self._news: dict[str, Mapping[str, str]] = {}
        self._ends: Counter[str] = Counter()
        self._names: frozenset[str] = frozenset()

    def __call__(self, child: str, news: Ready | ChildFailedError | None) -> None:
        self._report(child, news)
        # a stopped program may report that it is ready, because it was starting when it was stopped
        if "@" in child and child in self._names and find_teams_change(self._state) is not None:
            failed = news.message if isinstance(news, ChildFailedError) else ""
            # a program whose successor with other secrets does not start runs on
            before = self._news.get(child, {}) if failed else {}
            ready = dict(news) if isinstance(news, Mapping) else before
            self._ends[child] += news is None
            self._news[child] = {
                **{key: str(ready.get(key, "")) for key in ("url", "name", "secrets")},
                "error": failed,
                "ends": str(self._ends[child]),
            }
            self._write()

    def keep_only(self, specs: Sequence[ChildSpec]) -> None:
        """Forget the programs that are in no spec, so that nobody takes a stopped one for a running one."""
        self._names = frozenset(spec.name for spec in specs)
        if find_teams_change(self._state) is not None:
            # a successor that did not start is tried again, or given up; the program before it runs on
            self._news = {
                child: {**news, "error": ""} if news["url"] else news
                for child, news in self._news.items()
                if child in self._names
            }
            self._write()

    def _write(self) -> None:
        from retinue.runtime.teams.store import TeamStore  # only states with teams load this

        TeamStore(self._state).write_children(self._news)


def model_children(
    models: Models, settings: Settings, state: State, hub_url: str, environ: Mapping[str, str]
) -> Sequence[ChildSpec]:
    """The model agents that this machine can run. Each gets the variable of its key and of no other's."""
    # the ports below FIRST_MODEL_PORT are for agents that are not models
    port = ("--port", str(FIRST_MODEL_PORT), "--port-may-move")
    specs = []
    for name, variables in models.key_variables.items():
        keys = {variable: environ[variable] for variable in variables if variable in environ}
        table = settings.llm.get(name, LlmTable())
        own = _fill(f"llm.{name}", table.env, environ)
        environment = select_for_agent(environ) | keys | own | _own_variables(state, hub_url)
        specs.append(ChildSpec(name, ("serve", "--llm", name, *port), environment))
    return specs


def _open_folder(entry: AgentTable) -> AgentTable:
    """The entry, whose child serves all agents of a folder; with a port or an address, the one file of it."""
    folder = Path(entry.target)
    if not is_folder_of_agents(folder) or (entry.port is None and entry.advertise is None):
        return entry
    files = list_files(folder)
    if len(files) > 1:
        raise InvalidSettingError(
            f"agents: {entry.target}: {'advertise' if entry.port is None else 'port'}",
            f"the folder has {len(files)} agents",
            remedy="leave it away, or write an entry for each file",
        )
    return entry.model_copy(update={"target": str(files[0])}) if files else entry


def _own_variables(state: State, hub_url: str) -> dict[str, str]:
    return {"RETINUE_HOME": str(state.root), "RETINUE_HUB": hub_url}


def _fill(place: str, texts: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    missing = find_missing(texts, environ)
    if missing is not None:
        key, variable = missing
        raise InvalidSettingError(
            f"{place}: env.{key}",
            f"the variable {variable} is not set in the hub's environment",
            remedy="set it and start the hub again",
        )
    return fill_variables(texts, environ)


def _card_probe(http: HttpClient, timeout_s: float) -> Probe:
    async def answers_at(ready: Ready) -> bool:
        return await answers(http, str(ready["url"]), timeout_s=timeout_s) is None

    return answers_at


def _report(echo: Echo, logs: AgentLogs) -> OnChange:
    names: dict[str, str] = {}

    def report(child: str, news: Ready | ChildFailedError | None) -> None:
        if news is None:
            echo(f"{names.get(child, child)} ended; starting it again")
        elif isinstance(news, ChildFailedError):
            logs.name(child)
            echo(f"{news.message}; trying again")
        else:
            names[child] = str(news["name"])
            logs.name(child, names[child])
            echo(f"{names[child]} at {news['url']}")

    return report
