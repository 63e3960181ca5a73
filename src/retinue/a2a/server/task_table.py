"""The tasks of one process that callers see: running tasks, stored tasks, push receivers.

A task is stored when its client is shown it, then again when it asks, and when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

from retinue.a2a.codec.faults import invalid_parameters, push_config_not_found, task_not_found
from retinue.a2a.codec.requests import ListRequest, PushConfig
from retinue.a2a.codec.tasks import (
    ENDED,
    FAILED,
    SUBMITTED,
    WORKING,
    Event,
    Task,
    agent_message,
    set_status,
    state_of,
    with_history,
    without_artifacts,
)
from retinue.a2a.server.push import PushSender
from retinue.a2a.server.task_run import TaskRun
from retinue.core.call import TraceContext
from retinue.core.errors import BusyError, StateError
from retinue.core.record import Skill
from retinue.parts.text_skills import TextSkills
from retinue.web.security import RequestIdentity
from retinue.web.transport import UrlRefusedError

if TYPE_CHECKING:
    from retinue.storage.task_store import TaskStore

_log = structlog.get_logger(__name__)

MAX_ASKING = 1000
MAX_ASKING_OF_A_CALLER = 100
"""Tasks that wait for an answer at once."""

PROCESS_ENDED = "the process that ran this task has ended; send the message again"

FindSkills = Callable[[], Awaitable[Sequence[Skill]]]
"""The skills of the agent that the caller sees; raises RetinueError."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a request, to which agent; ``agent`` None = whichever has the skill.

    ``is_named``: the caller named the agent, by the path of its request. ``text_skills`` as in `A2aAgent`.
    """

    identity: RequestIdentity
    agent: str | None
    trace: TraceContext
    find_skills: FindSkills
    is_named: bool = False
    idempotency_key: str | None = None
    version_range: str | None = None
    text_skills: TextSkills | None = None

    @property
    def owner(self) -> str:
        return self.identity.principal.id


class TaskTable:
    """The tasks of one process. Methods raise A2aError and RetinueError.

    ``owns`` tells by the id whether a task of the store is one of this process, or of another one of its hub.
    """

    def __init__(
        self,
        open_store: Callable[[], TaskStore],
        push: PushSender,
        check_url: Callable[[str], None],
        owns: Callable[[str], bool] = lambda task_id: True,
    ) -> None:
        self._owns = owns
        self._open_store = open_store
        self._push = push
        self._check_url = check_url
        self._opening = asyncio.Lock()
        self._store: TaskStore | None = None
        self._running: dict[str, TaskRun] = {}

    @property
    def running(self) -> Iterable[TaskRun]:
        return list(self._running.values())

    def add(self, task: Task, caller: Sender, push: PushConfig | None) -> TaskRun:
        """Add a running task, until `remove`; callers cannot see it yet."""
        run = TaskRun(task, caller.agent or "", caller.owner, self._note, self._check_asking)
        if push is not None:
            run.push[push.id or run.id] = push
        self._running[run.id] = run
        return run

    def remove(self, run: TaskRun) -> None:
        """The run of a task has ended."""
        self._running.pop(run.id, None)

    def find_running(self, task_id: str, caller: Sender) -> TaskRun | None:
        run = self._running.get(task_id)
        if run is None or not run.is_shown or (run.agent, run.owner) != (caller.agent or "", caller.owner):
            return None
        return run

    async def find(self, task_id: str, caller: Sender) -> Task:
        """``GetTask``."""
        run = self.find_running(task_id, caller)
        if run is not None:
            return run.task
        store = await self._open()
        task = store.find(task_id, caller.agent or "", caller.owner)
        if task is None:
            raise task_not_found(task_id)
        return task

    async def list_page(self, request: ListRequest, caller: Sender) -> dict[str, Any]:
        """``ListTasks``: the caller's own tasks, the last changed first."""
        store = await self._open()
        page = store.list_page(
            caller.agent or "",
            caller.owner,
            context=request.context_id,
            state=request.state,
            since_ms=None if request.after is None else _read_time_ms(request.after),
            after=_read_token(request.page_token),
            limit=request.page_size,
        )
        tasks = [
            self._running[task["id"]].task if task["id"] in self._running else task for task in page.tasks
        ]
        if not request.with_artifacts:
            tasks = [without_artifacts(task) for task in tasks]
        return {
            "tasks": [with_history(task, request.history_length) for task in tasks],
            "nextPageToken": "" if page.next_after is None else f"{page.next_after[0]}.{page.next_after[1]}",
            "pageSize": request.page_size,
            "totalSize": page.total,
        }

    async def set_push(self, task_id: str, config: PushConfig, caller: Sender) -> tuple[str, PushConfig]:
        """``CreateTaskPushNotificationConfig``; returns its id and itself."""
        await self.find(task_id, caller)
        self.check_push(config)
        config_id = config.id or task_id
        (await self._open()).save_push(task_id, config_id, _dump_push(config))
        run = self._running.get(task_id)
        if run is not None:
            run.push[config_id] = config
        return config_id, config

    async def find_push(self, task_id: str, config_id: str, caller: Sender) -> PushConfig:
        """``GetTaskPushNotificationConfig``."""
        receivers = dict(await self.list_push(task_id, caller))
        if config_id not in receivers:
            raise push_config_not_found(task_id, config_id)
        return receivers[config_id]

    async def list_push(self, task_id: str, caller: Sender) -> list[tuple[str, PushConfig]]:
        """``ListTaskPushNotificationConfigs``: ids and configurations."""
        await self.find(task_id, caller)
        store = await self._open()
        return [(config_id, PushConfig(**body)) for config_id, body in store.list_push(task_id)]

    async def delete_push(self, task_id: str, config_id: str, caller: Sender) -> None:
        """``DeleteTaskPushNotificationConfig``."""
        await self.find(task_id, caller)
        (await self._open()).delete_push(task_id, config_id)
        run = self._running.get(task_id)
        if run is not None:
            run.push.pop(config_id, None)

    async def show(self, run: TaskRun) -> None:
        """The task becomes known to its client, so it is stored."""
        store = await self._open()
        run.is_shown = True
        if state_of(run.task) == SUBMITTED:
            set_status(run.task, WORKING)
        self._save(run)
        for config_id, config in run.push.items():
            store.save_push(run.id, config_id, _dump_push(config))
            if run.is_settled:
                # it settled before it was shown: this is its only event so far
                self._push.send(run.task, {"task": run.task}, config_id, config)

    def _note(self, run: TaskRun, event: Event) -> None:
        """Store a change of state, and push it."""
        if not run.is_shown:
            return
        is_report = not run.is_settled and "artifactUpdate" not in event
        if is_report and "metadata" in event["statusUpdate"]:
            return
        if "artifactUpdate" not in event:
            self._save(run)
        for config_id, config in run.push.items():
            self._push.send(run.task, event, config_id, config)

    def _save(self, run: TaskRun) -> None:
        # imported with the first task: a process that is never asked over A2A needs no store
        from retinue.storage.task_store import StoredTask

        assert self._store is not None
        state = state_of(run.task)
        try:
            self._store.save(
                StoredTask(
                    run.id, run.agent, run.owner, run.task["contextId"], state, state in ENDED, run.task
                )
            )
        except StateError as error:
            # the result is there, and its client gets it; only a later GetTask will not find it
            _log.error("task not stored", task=run.id, reason=error.message)

    def _check_asking(self, run: TaskRun) -> None:
        """Raise BusyError when too many questions are open, because each holds a call for minutes."""
        others = [other for other in self._running.values() if other is not run and other.is_asking]
        own = sum(other.owner == run.owner for other in others)
        if len(others) >= MAX_ASKING or own >= MAX_ASKING_OF_A_CALLER:
            raise BusyError("too many tasks wait for an answer", 10.0)

    async def recover(self) -> None:
        """Open the store: end the tasks of a process that has stopped, and notify their receivers."""
        await self._open()

    async def aclose(self) -> None:
        """Wait for the push notifications, and close the store."""
        await self._push.aclose()
        if self._store is not None:
            self._store.close()

    def check_push(self, config: PushConfig) -> None:
        try:
            self._check_url(config.url)
        except UrlRefusedError as error:
            raise invalid_parameters(f"the push notification url is refused: {error}") from error

    async def _open(self) -> TaskStore:
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    store = await asyncio.to_thread(self._open_store)
                    lost = store.end_unfinished(_end_lost, self._owns)
                    self._store = store
                    for task_id in lost:
                        self._tell_lost(store, task_id)
        return self._store

    def _tell_lost(self, store: TaskStore, task_id: str) -> None:
        for config_id, body in store.list_push(task_id):
            task = store.read(task_id)
            if task is not None:
                self._push.send(task, {"task": task}, config_id, PushConfig(**body))


def _end_lost(task: Task) -> tuple[str, Task]:
    set_status(task, FAILED, agent_message([{"text": PROCESS_ENDED}], task))
    return FAILED, task


def _dump_push(config: PushConfig) -> dict[str, Any]:
    return {
        "url": config.url,
        "id": config.id,
        "token": config.token,
        "scheme": config.scheme,
        "credentials": config.credentials,
        "legacy": config.legacy,
    }


def _read_time_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid_parameters(
            "statusTimestampAfter is no time; write it as 2026-01-31T12:00:00Z"
        ) from None
    return int(moment.timestamp() * 1000)


def _read_token(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    stamp, dot, task_id = token.partition(".")
    if not (dot and stamp.isdecimal() and len(stamp) < _LONGEST_STAMP and stamp.isascii()):
        raise invalid_parameters("pageToken is not one of this list; leave it out for the first page")
    return int(stamp), task_id


_LONGEST_STAMP = 17
