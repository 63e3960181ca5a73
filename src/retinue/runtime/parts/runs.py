"""The workflow runs of a hub or worker as a part, and the approvals, which are stored with them."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from retinue.approvals.records import Notice
from retinue.core.errors import (
    InvalidParametersError,
    InvalidRequestError,
    InvalidSettingError,
    RetinueError,
)
from retinue.hub.approvals.book import ApprovalBook, add_approval_skills
from retinue.hub.approvals.notices import ApprovalNotices
from retinue.hub.scheduling.signatures import check_secret
from retinue.mesh.observing.metrics import Figures
from retinue.parts.part import AgentsStarted, FirstReading, Opened, Part, ReadinessProblem
from retinue.parts.process import Process
from retinue.runtime.lazy_runs import IDLE_S, LazyRuns
from retinue.runtime.loading.policy_files import FOLDER, remove_policies
from retinue.runtime.observing.process_state import ProcessState
from retinue.runtime.parts.policies import check_answer
from retinue.runtime.serving import end_task, ending
from retinue.settings_tables import ApprovalsTable
from retinue.storage.files import make_folder, replace_file, storage_errors
from retinue.web.transport import HttpRequester, TransportError
from retinue.workflows.runs.records import RunStatus

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.database_watch import RunFigures


NOTICE_TIMEOUT_S = 10.0
"""Seconds that the delivery of a notice about an approval may take."""

LOOKS = 6
"""How often a hub is seen without a call in flight before it counts as idle."""


class RunsPart(Part):
    """Executes runs once the agents answer, because a recovered run calls agents at once.

    On stopping, runs leave before the agents stop, so that interrupted calls are no failures of a run. With
    ``starts_early`` the engine of a hub starts when no call has been in flight for ``idle_s``, before the
    first run asks for it.
    """

    name = "runs"
    kinds = frozenset({"hub", "worker"})
    needs = (LazyRuns,)
    runs_after = (FirstReading, AgentsStarted)
    ready_after = (AgentsStarted,)
    is_required = True

    def __init__(self, *, starts_early: bool = False, idle_s: float = IDLE_S) -> None:
        self._starts_early = starts_early
        self._idle_s = idle_s

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        runs = process.get(LazyRuns)
        database = runs.store.database
        launching: list[asyncio.Task[None]] = []

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            try:
                async with ending(launching):
                    yield
            finally:
                await runs.leave()

        limits = process.dispatcher.admission.limits

        async def wait_until_idle() -> None:
            idle_s = 0.0
            while idle_s < self._idle_s:
                await asyncio.sleep(self._idle_s / LOOKS)
                idle_s = 0.0 if limits.in_flight else idle_s + self._idle_s / LOOKS

        async def launch() -> None:
            early = wait_until_idle if self._starts_early else None
            try:
                await runs.launch(process.echo, wait_until_idle=early)
            except InvalidSettingError as error:
                process.ask_to_stop(f"{error.message}; {error.remedy}", 1)

        async def on_ready() -> None:
            if process.kind == "hub":
                launching.append(asyncio.create_task(launch()))
                return
            # without runs in its state folder a worker waits for the first, ready to take it
            process.get(ProcessState).is_started = database is None
            await runs.launch(process.echo, refuse_full=True, announces=True)
            process.echo(f"worker on {runs.store.place}")

        async def problems() -> Sequence[ReadinessProblem]:
            figures = await runs.read_figures()
            if figures is not None and figures.problem is not None:
                return [ReadinessProblem("database", "", _reason(figures.problem))]
            if runs.problem is not None:
                return [ReadinessProblem("runs", "", _reason(runs.problem))]
            if figures is None and database is not None:
                return [ReadinessProblem("database", "", "not connected yet")]
            return []

        async def figures(figures: Figures) -> None:
            known = await runs.read_figures()
            put_known_families(figures, has_runs=runs.store.exists())
            if known is not None:
                put_run_figures(figures, known)

        yield Opened(running=running, on_ready=on_ready, problems=problems, figures=figures)


def _reason(error: RetinueError) -> str:
    return f"{error.message} — {error.remedy}" if error.remedy else error.message


def put_known_families(figures: Figures, *, has_runs: bool) -> None:
    """Put the metrics that alerts ask for also while no run engine works, because an absent one never fires.

    The number of runs is NaN until the database has been read, so that it does not seem to rise then.
    """
    for status in get_args(RunStatus):
        figures.put("retinue_runs", math.nan if has_runs else 0, status)
    figures.put("retinue_nodes", 0)
    figures.put("retinue_lease_remaining_seconds", 0)
    figures.put("retinue_lease_losses_total", 0)


def put_run_figures(figures: Figures, runs: RunFigures) -> None:
    """Put what is known of the runs and their database."""
    figures.put("retinue_database_up", float(runs.problem is None))
    if runs.query_s is not None:
        figures.put("retinue_database_query_seconds", runs.query_s)
    for status, count in runs.statuses.items():
        figures.put("retinue_runs", count, status)
    if runs.half_undone is not None:
        figures.put("retinue_runs_half_undone", runs.half_undone)
    for state, count in runs.connections.items():
        figures.put("retinue_database_connections", count, state)
    for outcome, count in runs.steps.items():
        figures.put("retinue_run_steps_total", count, outcome)
    figures.put("retinue_runs_executing", runs.executing)
    if runs.own_node is not None:
        figures.put("retinue_nodes", len(runs.nodes))
    if runs.lease_left_s is not None:
        figures.put("retinue_lease_remaining_seconds", runs.lease_left_s)
    if runs.lease_losses is not None:
        figures.put("retinue_lease_losses_total", runs.lease_losses)


class ApprovalsPart(Part):
    """Adds the skills of approvals to the hub's agent."""

    name = "approvals"
    kinds = frozenset({"hub", "command"})
    needs = (LazyRuns,)
    rank = 86
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        runs = process.get(LazyRuns)
        folder = process.state.root
        book = ApprovalBook(
            runs.open_approvals,
            exists=runs.store.exists,
            save_rule=partial(save_yes, folder),
            remove_rule=partial(remove_yes, folder),
            check_answer=partial(check_answer, process),
        )
        skills = partial(add_approval_skills, book=book)
        table = process.tables.get(ApprovalsTable)
        if table.webhook is None or process.kind != "hub":
            yield Opened(skills=skills)
            return
        secret = read_secret(table, os.environ)

        async def claim() -> list[Notice]:
            return await (await runs.open_approvals()).claim_notices()

        async def settle(notice: Notice) -> None:
            await (await runs.open_approvals()).settle_notice(notice)

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            post = partial(post_notice, process.http, table.webhook or "")
            notices = ApprovalNotices(claim, settle, post, secret, exists=runs.store.exists)
            sending = asyncio.create_task(notices.run(), name="notices of approvals")
            try:
                yield
            finally:
                await end_task(sending)

        yield Opened(skills=skills, running=running)


async def save_yes(state_folder: Path, approval_id: str, text: str) -> None:
    """Store the yes of a person for similar calls among the policies.

    Raises StateError, and InvalidRequestError where another yes for this approval is stored.
    """
    path = state_folder / FOLDER / f"yes-{approval_id}.cedar"

    def save() -> None:
        with storage_errors(path):
            make_folder(path.parent)
            if path.exists():
                if path.read_bytes() == text.encode():
                    return
                raise InvalidRequestError(
                    f"another yes for calls like that of approval {approval_id} is stored",
                    remedy=f"read {path}; if the approval is still open, remove it: "
                    f"retinue policy remove {path.stem}",
                )
            replace_file(path, text.encode())

    await asyncio.to_thread(save)


async def remove_yes(state_folder: Path, approval_id: str) -> None:
    """Remove the yes of a person for similar calls from the policies; raises StateError."""
    await asyncio.to_thread(remove_policies, state_folder, f"yes-{approval_id}")


def read_secret(table: ApprovalsTable, environ: Mapping[str, str]) -> str:
    """The secret that signs notices; raises InvalidSettingError."""
    name = table.webhook_secret_env
    try:
        return check_secret(environ.get(name, ""))
    except InvalidParametersError:
        raise InvalidSettingError(
            "approvals.webhook_secret_env",
            f"the variable {name} has no secret of a webhook",
            remedy=f"set {name} to whsec_ and the base64 of 24 to 64 random bytes, as at the receiver",
        ) from None


async def post_notice(http: HttpRequester, url: str, headers: Mapping[str, str], body: bytes) -> str:
    """Send a notice; returns why that failed, "" for a delivery."""
    try:
        response = await http.request(
            "POST", url, timeout_s=NOTICE_TIMEOUT_S, headers=headers, body=body, max_response_bytes=64 * 1024
        )
    except (TransportError, RetinueError) as error:
        return str(error)
    return "" if 200 <= response.status < 300 else f"HTTP status {response.status}"
