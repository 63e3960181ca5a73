"""A run followed live from a client: each step told as it ends, the output at the end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from retinue.apps.client import Client
from retinue.core.errors import CallCancelledError, ExecutionFailedError, RetinueError, StepFailedError

_WAIT_S = 20.0


class Follower:
    """Starts a run and follows it; ``say`` hears one line for each step that ends.

    A run that this process no longer follows is cancelled, so that nobody works for nobody.
    """

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self._failed: Mapping[str, Any] | None = None
        """The failure that came last, held back: where the run ends with it, its error says it all."""

    async def run(self, workflow: str | Mapping[str, Any], given: Any, run_id: str | None = None) -> Any:
        """The output of the run; raises StepFailedError with the step, its agent and the cause."""
        # chosen here, so that a run whose start was never answered can be cancelled as well
        run = run_id or uuid.uuid4().hex
        try:
            await self._client.get("start_run", {"workflow": workflow, "input": given, "run": run})
            return await self._follow(run)
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(run))
            raise

    async def _follow(self, run: str) -> Any:
        after = 0
        while True:
            asked = {"run": run, "after": after, "wait_s": _WAIT_S}
            reply = await self._client.get("follow_run", asked, timeout_s=_WAIT_S + 40)
            for event in reply["events"]:
                self._tell(event)
            after = reply["next"]
            if reply["done"]:
                self._tell_failed(whole=reply["status"] != "failed")
                return _result(run, reply)

    def _tell(self, event: Mapping[str, Any]) -> None:
        if line := describe(event):
            self._tell_failed(whole=True)
            if event.get("error"):
                self._failed = event
            else:
                self._say(line)

    def _tell_failed(self, *, whole: bool) -> None:
        """Say the failure that was held back, with its message or only that there was one."""
        if self._failed is not None and (line := describe(self._failed, whole=whole)):
            self._say(line)
        self._failed = None

    async def _cancel(self, run: str) -> None:
        try:
            await self._client.get("cancel_run", {"run": run}, timeout_s=5)
        except RetinueError as error:
            self._say(f"run {run} could not be cancelled: {error.message}")


def describe(event: Mapping[str, Any], *, whole: bool = True) -> str | None:
    """One line for a call that began or ended; None for what nobody needs to see.

    Without ``whole`` the line of a failure leaves its message out.
    """
    if event.get("kind") != "call":
        return None
    if event["event"] == "step_finished":
        seconds = float(event.get("duration_ms") or 0) / 1000
        error = event.get("error")
        failed = f"failed: {error['message']}" if error and whole else "failed"
        end = failed if error else f"{seconds:6.1f} s"
    else:
        end = "     …"
    return f"  {event['step']:<18} {event.get('skill') or '-':<16} {event.get('agent') or '-':<14} {end}"


def _result(run: str, reply: Mapping[str, Any]) -> Any:
    if reply["status"] == "done":
        return reply.get("output")
    if reply["status"] == "cancelled":
        raise CallCancelledError(f"run {run}")
    error = reply.get("error") or {}
    if error.get("type") == StepFailedError.type:
        raise StepFailedError.from_data(error["data"])
    raise ExecutionFailedError(
        str(error.get("message", "no reason given")), remedy=str(error.get("remedy", ""))
    )
