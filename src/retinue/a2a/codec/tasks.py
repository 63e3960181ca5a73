"""Pure: renders tasks and their events as JSON of A2A 1.x."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

State = Literal[
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
]

SUBMITTED: State = "TASK_STATE_SUBMITTED"
WORKING: State = "TASK_STATE_WORKING"
COMPLETED: State = "TASK_STATE_COMPLETED"
FAILED: State = "TASK_STATE_FAILED"
CANCELED: State = "TASK_STATE_CANCELED"
INPUT_REQUIRED: State = "TASK_STATE_INPUT_REQUIRED"

ENDED: frozenset[str] = frozenset({COMPLETED, FAILED, CANCELED, "TASK_STATE_REJECTED"})
"""The states in which nothing happens any more."""

Task = dict[str, Any]
Event = dict[str, Any]
"""A ``StreamResponse``: an object with exactly one of task, message, statusUpdate and artifactUpdate."""

MAX_HISTORY = 200
"""Messages of a task that are kept; the oldest go first."""


def now_text() -> str:
    """The time as A2A writes it: UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_task(task_id: str, context_id: str, message: Mapping[str, Any]) -> Task:
    """A task that begins with the user's message."""
    task: Task = {
        "id": task_id,
        "contextId": context_id,
        "status": {"state": SUBMITTED, "timestamp": now_text()},
        "history": [],
    }
    add_message(task, message)
    return task


def add_message(task: Task, message: Mapping[str, Any]) -> None:
    """Add a message of the user or of the agent to the history."""
    history = task.setdefault("history", [])
    history.append({**message, "taskId": task["id"], "contextId": task["contextId"]})
    del history[:-MAX_HISTORY]


def agent_message(
    parts: Sequence[Mapping[str, Any]], task: Task | None = None, metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A message of the agent, within ``task`` if there is one."""
    message: dict[str, Any] = {"messageId": str(uuid.uuid4()), "role": "ROLE_AGENT", "parts": list(parts)}
    if task is not None:
        message |= {"taskId": task["id"], "contextId": task["contextId"]}
    if metadata:
        message["metadata"] = dict(metadata)
    return message


def set_status(
    task: Task,
    state: State,
    message: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Event:
    """Change the state of a task; returns the event that tells it."""
    status: dict[str, Any] = {"state": state, "timestamp": now_text()}
    if message is not None:
        status["message"] = message
    task["status"] = status
    event: dict[str, Any] = {"taskId": task["id"], "contextId": task["contextId"], "status": status}
    if metadata:
        event["metadata"] = dict(metadata)
    return {"statusUpdate": event}


def add_artifact(task: Task, parts: Sequence[Mapping[str, Any]], name: str) -> Event:
    """Add a complete artifact; returns the event that tells it."""
    artifact = {"artifactId": str(uuid.uuid4()), "name": name, "parts": list(parts)}
    task.setdefault("artifacts", []).append(artifact)
    event = {"taskId": task["id"], "contextId": task["contextId"], "artifact": artifact, "lastChunk": True}
    return {"artifactUpdate": event}


def as_begun(task: Task) -> Task:
    """The task as it was before its result: the first event of a stream of a call that was quick."""
    begun = {key: value for key, value in task.items() if key not in ("artifacts", "metadata")}
    return {**begun, "status": {"state": WORKING, "timestamp": task["status"]["timestamp"]}}


def with_history(task: Task, length: int | None) -> Task:
    """The task with the last ``length`` messages of its history; None = all."""
    if length is None or "history" not in task:
        return task
    shortened = {key: value for key, value in task.items() if key != "history"}
    if length:
        shortened["history"] = task["history"][-length:]
    return shortened


def without_artifacts(task: Task) -> Task:
    """The task without its results, as lists show it."""
    return {key: value for key, value in task.items() if key != "artifacts"}


def state_of(task: Task) -> str:
    """The state of a task."""
    return str(task["status"]["state"])


def is_last(event: Event) -> bool:
    """Whether a stream of a request ends with this event: the task has ended or waits for its client."""
    change = event.get("statusUpdate") or event.get("task")
    return change is not None and (state_of(change) in ENDED or state_of(change) == INPUT_REQUIRED)
