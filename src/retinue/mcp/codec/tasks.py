"""Pure: tasks of an MCP server, which run a tool beyond the request that started it.

https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/tasks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RELATED_KEY = "io.modelcontextprotocol/related-task"
"""In ``_meta`` of a message or result: the task that it belongs to."""

STATUS_METHOD = "notifications/tasks/status"

POLL_S = 1.0
"""How long to wait between two looks at a task whose server names no time."""

_SHORTEST_POLL_S = 0.05
_LONGEST_POLL_S = 3600.0
_OVER = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class ServerTask:
    """The state of a task as the server last told it; ``message`` is for people."""

    id: str
    status: str
    message: str = ""
    poll_s: float = POLL_S

    @property
    def is_over(self) -> bool:
        """Whether its result is there."""
        return self.status in _OVER

    @property
    def asks(self) -> bool:
        """Whether it waits for an answer, which it asks for in the response to ``tasks/result``."""
        return self.status == "input_required"


def parse_task(value: Any) -> ServerTask | None:
    """The task in a result or in the parameters of a notification; None if there is none."""
    if not isinstance(value, Mapping):
        return None
    task_id, status, message = value.get("taskId"), value.get("status"), value.get("statusMessage")
    if not isinstance(task_id, str) or not task_id or not isinstance(status, str):
        return None
    poll_ms = value.get("pollInterval")
    poll_s = POLL_S
    if isinstance(poll_ms, int | float) and not isinstance(poll_ms, bool):
        poll_s = min(max(poll_ms / 1000, _SHORTEST_POLL_S), _LONGEST_POLL_S)
    return ServerTask(task_id, status, message if isinstance(message, str) else "", poll_s)


def needs_task(tool: Mapping[str, Any]) -> bool:
    """Whether a tool runs as a task only."""
    execution = tool.get("execution")
    return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"


def find_related(document: Mapping[str, Any]) -> str | None:
    """The id of the task that a message of the server belongs to, None without one."""
    params = document.get("params")
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    related = meta.get(RELATED_KEY) if isinstance(meta, Mapping) else None
    task_id = related.get("taskId") if isinstance(related, Mapping) else None
    return task_id if isinstance(task_id, str) else None
