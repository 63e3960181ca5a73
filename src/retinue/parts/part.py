"""The interface of a part of a process.

The class says what is known without a process. ``open`` makes the part in a process, and `Opened` says what
it gives. A part has four moments: it is opened before the process serves, ``running`` is entered when the
server answers, ``on_ready`` follows when all parts run, and ``drain`` is called before the server stops.

This module is loaded by every command that reads settings, so it imports nothing heavy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from retinue.parts.process import Kind, Process, Tables

if TYPE_CHECKING:
    from pydantic import BaseModel
    from starlette.routing import BaseRoute

    from retinue.authoring.agent import Agent
    from retinue.core.call import Principal
    from retinue.mesh.directory.sources import Source
    from retinue.mesh.dispatch import Invoker
    from retinue.mesh.observing.metrics import Figures, Metric
    from retinue.storage.state import State
    from retinue.web.security import SecurityMiddleware

INTERFACE = 1
"""The version of this interface. A distribution whose part has another one is refused by name."""

FOREIGN_RANK = 500
"""The rank of the routes of parts that declare none: after the core's protocols, before the dashboard."""


Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class ReadinessProblem:
    """Something that a process lacks; ``is_fatal`` = until then it can serve no request.

    ``what`` is ``process``, ``database``, ``source``, ``child``, ``upstream`` or ``part``; the first two have
    no name.
    """

    what: str
    name: str
    reason: str
    is_fatal: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of ``retinue doctor``; ``remedy`` is "" if nothing needs to be fixed."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {"check": self.name, "status": self.status, "found": self.found, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the commands of some kinds; its value is written into ``field`` of the part's table.

    ``flag`` begins with ``--`` and the part's name, so that it is no option of Retinue or of another part.
    Without ``metavar`` it is a flag, and writes True.
    """

    flag: str
    field: str
    kinds: frozenset[Kind]
    help: str
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class LivePart:
    """Settings that apply while a process runs; ``names`` are globs of their dotted names.

    ``prepare`` checks the new settings, which may raise RetinueError, and returns what applies them.
    """

    names: tuple[str, ...]
    prepare: Callable[[Tables], Callable[[], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The contributions of an open part to its process; every field is optional.

    ``product`` is what other parts get by the class in `Part.gives`. ``invokers`` run the skills of listings
    by their source, ``protocols`` those of agents without ``/execute`` by the protocol of their endpoint.
    ``open_paths``, and paths that begin with one of ``open_prefixes``, need no token. Endpoints at paths that
    begin with one of ``any_media_type`` check the media type themselves. ``tokens`` are accepted at every
    route. ``on_checks`` is given the security checks before the first request, to put an app in front of some
    paths. ``figures`` puts values of ``metrics``, which are new names, or of known metrics.
    """

    product: object | None = None
    routes: Sequence[BaseRoute] = ()
    sources: Sequence[Source] = ()
    invokers: Mapping[str, Invoker] = field(default_factory=dict)
    protocols: Mapping[str, Invoker] = field(default_factory=dict)
    skills: Callable[[Agent], None] | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    figures: Callable[[Figures], Awaitable[None]] | None = None
    problems: Callable[[], Awaitable[Sequence[ReadinessProblem]]] | None = None
    live: Sequence[LivePart] = ()
    open_paths: frozenset[str] = frozenset()
    open_prefixes: Sequence[str] = ()
    any_media_type: Sequence[str] = ()
    tokens: Mapping[str, Principal] = field(default_factory=dict)
    on_checks: Callable[[SecurityMiddleware], None] | None = None
    running: Callable[[], AbstractAsyncContextManager[object]] | None = None
    on_ready: Callable[[], Awaitable[None]] | None = None
    drain: Callable[[], None] | None = None


class Part(ABC):
    """One part of a process: a protocol, a page, a source of agents, a background task.

    ``kinds`` are the processes that have it. ``needs`` are the products that must be there when it opens.
    ``runs_after`` and ``ready_after`` are products whose parts run, or are ready, before it does; one that is
    absent is no error. ``gives`` is the class of its product. Routes are matched by ``rank``, lowest first.
    ``table`` is its table of ``retinue.toml``, under the part's name. A process does not start without an
    ``is_required`` part; it runs without another one that cannot open, and ``/ready`` says so.
    """

    interface: ClassVar[int] = INTERFACE
    name: ClassVar[str]
    kinds: ClassVar[frozenset[Kind]]
    needs: ClassVar[tuple[type, ...]] = ()
    runs_after: ClassVar[tuple[type, ...]] = ()
    ready_after: ClassVar[tuple[type, ...]] = ()
    gives: ClassVar[type | None] = None
    rank: ClassVar[int] = FOREIGN_RANK
    table: ClassVar[type[BaseModel] | None] = None
    options: ClassVar[tuple[Option, ...]] = ()
    is_required: ClassVar[bool] = False

    def is_wanted(self, tables: Tables, kind: Kind) -> bool:
        """Whether a process of this kind has the part at all; asked before anything heavy is imported."""
        return True

    def checks(self, tables: Tables, state: State) -> Sequence[Check]:
        """The rows of ``retinue doctor``; no process is open."""
        return ()

    @abstractmethod
    def open(self, process: Process) -> AbstractAsyncContextManager[Opened]:
        """Make the part; it never waits for the network. What leaving ends, it ends also if opening fails."""


class HubFile:
    """A product: the file by which programs find the running hub is written."""


class FirstReading:
    """A product: the directory has been read once since the hub serves."""


class AgentsStarted:
    """A product: the agents that the hub starts answer, and their health is known."""
