"""The session of a step ``think``: the history that its run begins with, and what it adds to it.

A history belongs to one caller with its rights, and to one step of one workflow. It is read when the plan is
recorded, so that a run that is resumed begins with the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from retinue.core.errors import InvalidSettingError
from retinue.core.json_values import text_of
from retinue.core.usage import NO_SOURCES, SOURCES, add_sources, read_sources
from retinue.thinking.plan import ThinkPlan
from retinue.thinking.session import History, session_key
from retinue.workflows.interpreter.frame import Frame
from retinue.workflows.runs.ports import SessionStore

SESSION_S = 60.0


async def with_history(frame: Frame, plan: ThinkPlan, session: str | None, path: str) -> ThinkPlan:
    """The plan with the history of the session with this id; as it is without an id."""
    if not session:
        return plan
    key = session_key(frame.request.origin.rights, [frame.request.name, path], session)
    store = await _open(frame)
    return replace(plan, session=key, history=await store.find(key))


def take_in_history(frame: Frame, plan: ThinkPlan) -> None:
    """Note the sources of earlier runs of the session, whose answers the model is told."""
    if plan.history and SOURCES in plan.history:
        frame.budget.spend({SOURCES: plan.history[SOURCES]})


async def remember(frame: Frame, plan: ThinkPlan, history: History, answer: Any, turn: str) -> None:
    """Add the prompt of a plan and its answer to the session; nothing without one.

    ``history`` is what the run began with, after it was condensed. A session that cannot be written is a
    warning in the events of the run, because the answer is there.
    """
    if not plan.session:
        return
    run = frame.name(turn.rpartition("/")[0])
    begun = History.from_json(plan.history)
    read = add_sources(frame.request.origin.sources, frame.budget.sources)
    condensed = [exchange for exchange in begun.exchanges if exchange not in history.exchanges]

    def change(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        current = History.from_json(stored)
        if condensed:
            current = current.condensed(condensed, history.summary)
        value = current.with_exchange(run, plan.prompt, text_of(answer)).to_json()
        sources = add_sources(read_sources((stored or {}).get(SOURCES)) or NO_SOURCES, read)
        return value if sources == NO_SOURCES else {**value, SOURCES: sources.to_json()}

    async def effect() -> None:
        store = await _open(frame)
        await store.change(plan.session, frame.context.run_id.partition("/")[0], change)

    facts = {"kind": "session", "below": ""}
    await frame.context.step(f"{turn}/session", effect, timeout_s=SESSION_S, facts=facts)


async def _open(frame: Frame) -> SessionStore:
    if frame.tools.open_sessions is None:
        raise InvalidSettingError(
            "session", "this process keeps no sessions", remedy="run the workflow at a hub"
        )
    return await frame.tools.open_sessions()
