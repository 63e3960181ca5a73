"""Stores accepted tasks and subscriptions on disk, so that a restart loses no task.

A task is stored before its TASK_ACCEPT is sent, and again with the reply that ended it. The next process ends
unfinished tasks with FAILURE, and sends the replies whose delivery was not finished; one that failed three
times is not sent again. The payload of a request is not stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from retinue.core.errors import StateError
from retinue.messages.codec.envelope import Envelope, NotUnderstoodError, parse_envelope, render_envelope
from retinue.messages.codec.payloads import INTERRUPTED, PerformativeReply, failed, not_json
from retinue.messages.subscriptions import Subscription
from retinue.messages.tasks import MessageTask
from retinue.storage.task_store import StoredTask, TaskStore

TASK, SUBSCRIPTION = "task", "subscription"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Left:
    """The records of earlier processes: ended tasks, replies due to callbacks, subscriptions."""

    tasks: list[MessageTask] = field(default_factory=list)
    untold: list[MessageTask] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)


class TaskJournal:
    """The stored tasks and subscriptions of one process; the file is opened when it is needed.

    ``open_store`` None = nothing is stored.
    """

    def __init__(self, open_store: Callable[[], TaskStore] | None = None) -> None:
        self._open_store = open_store
        self._store: TaskStore | None = None

    def save_task(self, task: MessageTask, *, told: bool = False) -> None:
        """Store the present state of a task; ``told`` = its end needs no delivery. Raises StateError.

        A reply that JSON cannot carry is stored as the failure that is sent in its place.
        """
        if (store := self._open()) is None:
            return
        try:
            store.save(_row_of(task, task.reply, told))
        except TypeError as error:
            store.save(_row_of(task, not_json(error), told))

    def note_end(self, task: MessageTask, *, told: bool) -> None:
        """As `save_task`, for a task that has ended: a disk that is full does not take its reply away."""
        try:
            self.save_task(task, told=told)
        except StateError as error:
            _log.warning("the end of a task is not stored", task=task.id, reason=str(error))

    def save_subscription(self, subscription: Subscription) -> None:
        """Store a subscription, so that a restarted process can notify its receiver. Raises StateError."""
        if (store := self._open()) is not None:
            body = _body(SUBSCRIPTION, subscription.id, subscription.request, subscription.agent)
            store.save(
                StoredTask(
                    subscription.id, subscription.agent, subscription.owner, "", SUBSCRIPTION, False, body
                )
            )

    def forget(self, subscription: Subscription) -> None:
        """Remove a subscription that has ended."""
        if self._store is not None:
            self._delete(self._store, subscription.id)

    def load(self) -> Left:
        """The stored records; tasks that had not ended have failed. Raises StateError."""
        left = Left()
        store = self._open()
        if store is None:
            return left
        for owner, body in store.list_bodies():
            try:
                request = parse_envelope(body["request"])
            except NotUnderstoodError as error:
                # no later process reads it either
                _log.warning("a stored message cannot be read; removed", id=body["id"], reason=error.text)
                self._delete(store, body["id"])
                continue
            if body["kind"] == SUBSCRIPTION:
                left.subscriptions.append(Subscription(owner, request, body["agent"], body["id"]))
                continue
            task = MessageTask(body["id"], owner, request, body["agent"])
            has_ended = body["reply"] is not None
            task.reply = PerformativeReply(*body["reply"]) if has_ended else interrupted(task.id)
            task.ended_at = body["ended_at"] if has_ended else time.time()
            left.tasks.append(task)
            if request.callback_url is not None and not body["ended"]:
                left.untold.append(task)
            elif not has_ended:
                self.note_end(task, told=True)
        # the first that is dropped is the one that ended first
        left.tasks.sort(key=lambda task: task.ended_at or 0.0)
        return left

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()

    def _delete(self, store: TaskStore, id: str) -> None:  # noqa: A002
        try:
            store.delete(id)
        except StateError as error:
            _log.warning("a stored message is not removed", id=id, reason=str(error))

    def _open(self) -> TaskStore | None:
        if self._store is None and self._open_store is not None:
            self._store = self._open_store()
        return self._store


def interrupted(task_id: str) -> PerformativeReply:
    """FAILURE of a task whose process ended while it ran."""
    text = (
        f"the process of task {task_id} ended while the task ran; it may have done a part — request it again"
    )
    return failed(INTERRUPTED, text, {"task_id": task_id})


def subscription_lost(subscription: Subscription) -> PerformativeReply:
    """FAILURE of a subscription whose process ended."""
    text = f"subscription {subscription.id} has ended with its process — subscribe again"
    return failed("subscription_ended", text, {"task_id": subscription.id})


def _row_of(task: MessageTask, reply: PerformativeReply | None, is_told: bool) -> StoredTask:
    end = (
        {"reply": None, "ended_at": None}
        if reply is None
        else {"reply": [reply.performative, dict(reply.payload)], "ended_at": time.time()}
    )
    body = {**_body(TASK, task.id, task.request, task.agent), **end}
    return StoredTask(task.id, task.agent, task.owner, "", TASK, is_told, body)


def _body(kind: str, id: str, request: Envelope, agent: str) -> Mapping[str, Any]:  # noqa: A002
    plain = replace(request, payload={}, signature=None)
    return {"kind": kind, "id": id, "agent": agent, "request": render_envelope(plain)}
