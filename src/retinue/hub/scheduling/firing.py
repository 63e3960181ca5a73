"""Starts runs for a schedule or trigger: with the rights of its owner, and definitions that the owner saw."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.call import Principal, TraceContext
from retinue.core.errors import (
    DefinitionError,
    InvalidRequestError,
    NotAllowedError,
    RetinueError,
    StateError,
    UnknownRunError,
    UnknownWorkflowError,
)
from retinue.hub.run_access import reject_limited
from retinue.hub.workflows import RunStarter
from retinue.mesh.permissions import is_mesh_itself
from retinue.workflows.definitions.loading import Loaded
from retinue.workflows.library import Library, bundle
from retinue.workflows.schedules import ScheduleOwner, StoredSchedule, digest_definitions
from retinue.workflows.triggers import StoredTrigger

TOKEN_CALLER = "token:"  # noqa: S105 - the beginning of an id
JOIN_CALLER = "join:"

CheckOwner = Callable[[ScheduleOwner], str]
"""Why the rights of an owner have ended, "" if they have not; raises StateError."""


Stored = StoredSchedule | StoredTrigger


@dataclass(frozen=True, slots=True)
class Firing:
    """Starts runs of schedules and triggers. ``new_trace`` begins a chain."""

    starter: RunStarter
    check_owner: CheckOwner
    new_trace: Callable[[], TraceContext]

    async def load(self, schedule: Stored, chain: TraceContext | None = None) -> Loaded:
        """The workflow of a schedule; raises RetinueError if it, or one it runs, has changed or is gone.

        ``chain`` = the chain whose workflow it is; None = the workflow that lists show. While a team changes
        its digest, that is the workflow that the owner has seen, of either digest.
        """
        chains = self.starter.chains
        if chain is not None or chains is None:
            return await self._load(schedule, chain)
        shown, *others = chains.list_choices(self.new_trace())
        try:
            return await self._load(schedule, shown)
        except RetinueError:
            for other in others:
                with suppress(RetinueError):
                    return await self._load(schedule, other)
            raise

    async def _load(self, schedule: Stored, chain: TraceContext | None) -> Loaded:
        library = self.starter.library_of(chain)
        loaded = await library.get(schedule.workflow)
        if await self.digest(loaded, library) != schedule.digest:
            raise InvalidRequestError(
                f"workflow {schedule.workflow} was changed since the schedule was added",
                remedy=f"read it, then add the schedule again, with its options: {command_to_add(schedule)}",
            )
        return loaded

    async def digest(self, loaded: Loaded, library: Library | None = None) -> str:
        """The digest of a workflow with all that it runs; raises DefinitionError, RegistryError."""
        bundled = await bundle(library or self.starter.library, loaded)
        return digest_definitions(loaded.definition, bundled.nested)

    async def start(
        self, schedule: Stored, loaded: Loaded, run: str, run_input: Any, cause: TraceContext | None = None
    ) -> str:
        """Start the run of this id with an input, or find it; returns its stored id. Raises RetinueError.

        A run with a ``cause`` continues that chain, so that one that causes itself ends at the depth limit.
        """
        trace = self.new_trace()
        if cause is not None and cause.id:
            trace = replace(trace, id=cause.id, depth=cause.depth + 1, path=cause.path)
        elif self.starter.chains is not None:
            loaded, trace = await self._choose(schedule, loaded, self.starter.chains.begin(trace), trace)
        started = await self.starter.start(
            loaded,
            loaded.definition,
            run_input,
            schedule.owner.principal,
            trace,
            run=run,
        )
        return started.record.id

    async def _choose(
        self, schedule: Stored, shown: Loaded, chosen: TraceContext, trace: TraceContext
    ) -> tuple[Loaded, TraceContext]:
        """The workflow and the trace of the digests that a chain has chosen by its hash.

        Those whose workflow the owner of the schedule has seen, if it is not that of the chosen ones.
        """
        chains = self.starter.chains
        for chain in (chosen, *(() if chains is None else chains.list_choices(trace))):
            with suppress(RetinueError):
                return await self.load(schedule, chain), chain
        return shown, trace

    async def is_running(self, run: str) -> bool:
        """Whether the run of this stored id still runs."""
        try:
            return (await self.starter.runs.get(run)).status == "running"
        except UnknownRunError:
            return False


def has_issued_token(owner: ScheduleOwner) -> bool:
    """Whether the rights of an owner are those of an issued token, which only its own state folder knows."""
    return owner.id.startswith((TOKEN_CALLER, JOIN_CALLER))


def own(principal: Principal) -> ScheduleOwner:
    """The owner that a principal becomes; raises NotAllowedError for one whose rights nothing keeps."""
    reject_limited(principal)
    if not is_mesh_itself(principal) and not principal.id.startswith(TOKEN_CALLER):
        raise NotAllowedError(
            f"{principal.id} has no lasting rights, with which a schedule could act",
            remedy="use a token that the hub has issued: retinue token new --scope mesh --name NAME",
        )
    return ScheduleOwner(principal.id, principal.kind, principal.scopes)


def default_name(workflow: str) -> str:
    """The name of a schedule of a workflow that was added without one."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", workflow)[:64]


def command_to_add(stored: Stored) -> str:
    """The command that replaces a schedule or trigger, without the options of its own."""
    name = "" if stored.name == default_name(stored.workflow) else f" --name {stored.name}"
    event = f" --on {stored.kind}" if isinstance(stored, StoredTrigger) else ""
    return f"retinue schedules add {stored.workflow}{name}{event}"


def describe(error: RetinueError) -> str:
    """An error with its remedy, as the reason why no run was started."""
    return f"{error.message} — {error.remedy}" if error.remedy else error.message


def may_pass(error: RetinueError) -> bool:
    """Whether the next attempt may succeed, so that the time of a schedule goes on waiting."""
    lasting = (DefinitionError, UnknownWorkflowError)
    return not isinstance(error, lasting) and (isinstance(error, StateError) or error.kind.retryable)
