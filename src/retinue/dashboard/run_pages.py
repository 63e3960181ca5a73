"""The pages of runs: the list, one run as a drawing and a table, and the actions on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retinue.approvals.records import SCOPE
from retinue.core.call import Principal
from retinue.core.errors import InvalidParametersError, InvalidRequestError, UnknownApprovalError
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.drawings.coming_steps import NOT_RUN, TO_COME, add_steps_to_come
from retinue.dashboard.drawings.conversation import (
    Conversation,
    find_loop,
    join_texts,
    read_conversation,
)
from retinue.dashboard.drawings.shapes import draw_tiles
from retinue.dashboard.drawings.step_levels import make_level
from retinue.dashboard.drawings.timeline import place_steps
from retinue.dashboard.figures import draw_steps, find_waiting
from retinue.dashboard.files.artifact_files import ArtifactFiles
from retinue.dashboard.files.result_files import ResultFiles
from retinue.dashboard.frame import (
    MAX_ARGUMENTS_CHARACTERS,
    PAGE,
    Page,
    PageFrame,
    describe_error,
    lead_to,
    read_entries,
    read_number,
)
from retinue.dashboard.questions import Question, make_question, read_answer
from retinue.dashboard.sessions import ROOT

ACTIONS = ("cancel_run", "resume_run", "rerun_run", "signal_run", "answer_approval")
"""The actions on a run; each is a skill of the hub."""

MAX_LISTED = 1000
"""The newest runs that the pages list; filters and ``retinue runs`` reach older ones."""

MAX_QUESTIONS = 20
"""Questions of one run that are shown with a form."""

MAX_ROW_CHARACTERS = 400
"""Characters of a value in the row of a step."""

_NO_EVENTS = 2**53 - 1
"""A number behind that of every event."""

MAX_VALUE_CHARACTERS = 5_000
"""Characters of a value on the page of its step, and of the run's own values."""


class RunPages:
    """The pages below ``/ui/runs``; ``has_runs`` tells whether any run was stored."""

    def __init__(
        self,
        hub: HubSkills,
        frame: PageFrame,
        files: ResultFiles,
        artifacts: ArtifactFiles,
        has_runs: Callable[[], bool],
    ) -> None:
        self._hub = hub
        self._frame = frame
        self._files = files
        self._artifacts = artifacts
        self._has_runs = has_runs

    def list_pages(self) -> dict[str, Page]:
        """The pages to read, by path."""
        return {f"{ROOT}/runs": self._runs, f"{ROOT}/runs/{{run}}": self._run}

    def list_actions(self) -> dict[str, Page]:
        """The actions of forms, by path."""
        return {f"{ROOT}/runs/{{run}}": self._change_run}

    async def list_runs(self, principal: Principal, **filters: Any) -> list[Json]:
        """The rows of ``list_runs``; none before the first run, which would open the database."""
        if not self._has_runs():
            return []
        listing = await self._hub.read(principal, "list_runs", filters)
        return list(listing["runs"])

    async def _runs(self, request: Request, principal: Principal) -> Response:
        entries = {key: value for key, value in request.query_params.items() if value.strip()}
        filters = {key: entries[key] for key in ("status", "workflow") if key in entries}
        first = min(read_number(request, "from"), MAX_LISTED - PAGE)
        runs = await self.list_runs(principal, **filters, limit=min(first + PAGE + 1, MAX_LISTED))
        shown = runs[first : first + PAGE]
        context = {
            "runs": shown,
            "wanted": filters,
            "previous": max(0, first - PAGE) if first else None,
            "next": first + PAGE if len(runs) > first + PAGE else None,
        }
        return self._frame.render("runs.html", request, context, "runs", data={"runs": shown})

    async def _run(self, request: Request, principal: Principal) -> Response:
        return await self._show(request, principal, {})

    async def _show(
        self, request: Request, principal: Principal, answered: Mapping[str, Question]
    ) -> Response:
        """The page of a run; ``answered`` are questions with an answer that was refused, by their step."""
        run = await self._hub.read(principal, "show_run", {"run": request.path_params["run"]})
        entries = request.query_params
        path = entries.get("step", "")
        only_failed = entries.get("failed") == "1"
        steps = add_steps_to_come(run["steps"], run.get("plan", ()), ended=run["status"] != "running")
        level = make_level(steps, path, read_number(request, "from"), failed=only_failed)
        if level is None:
            raise InvalidRequestError(f"The run has no step {path[:200]!r}", remedy="open the run again")
        waiting = find_waiting(run["steps"])
        shown = run.get("output") if level.within is None else _result_of(level.within)
        talk = await self._read_talk(principal, run, find_loop(run["steps"], level.within), request)
        context = {
            "run": run,
            "level": level,
            "talk": talk,
            "files": self._files.show_value(shown, principal),
            "artifacts": await self._artifacts.show(
                [run.get("input"), *_list_values(run["steps"]), run.get("output")]
                if level.within is None
                else _list_values([level.within])
            ),
            "failed": only_failed,
            "graph": None if level.is_wide or only_failed else draw_steps(level.steps),
            "tiles": draw_tiles(level.statuses) if level.is_wide and not only_failed else None,
            "waiting": waiting[:MAX_QUESTIONS],
            "questions": {
                step["step"]: answered.get(step["step"]) or make_question(step.get("schema"))
                for step in waiting[:MAX_QUESTIONS]
            },
            "approvals": await self._read_approvals(principal, waiting[:MAX_QUESTIONS]),
            "can_approve": SCOPE in principal.scopes,
            "approval_limit": MAX_ARGUMENTS_CHARACTERS,
            "is_answered": bool(answered),
            "timeline": place_steps(level.rows, run["started_at"], run.get("finished_at") or time.time()),
            "not_begun": (TO_COME, NOT_RUN),
            "more_waiting": max(0, len(waiting) - MAX_QUESTIONS),
            "row_limit": MAX_ROW_CHARACTERS,
            "run_limit": MAX_VALUE_CHARACTERS,
            "value_limit": MAX_VALUE_CHARACTERS,
        }
        return self._frame.render("run.html", request, context, "runs", data=run)

    async def _read_talk(
        self, principal: Principal, run: Json, loop: Json | None, request: Request
    ) -> Conversation | None:
        """The conversation of a loop, with the text that its model is writing; None without a loop."""
        if loop is None:
            return None
        first = read_number(request, "turn")
        if run["status"] != "running":
            return read_conversation(loop, first)
        # no events, and no waiting: only what the steps have reported, which is kept from this look on
        arguments = {"run": run["run"], "after": _NO_EVENTS, "wait_s": 0.0, "progress_after": 0}
        reply = await self._hub.read(principal, "follow_run", arguments)
        return read_conversation(loop, first, join_texts(reply.get("progress", ())))

    async def _read_approvals(self, principal: Principal, waiting: Sequence[Json]) -> dict[str, Json]:
        """The calls that wait for approval, by id, as far as the visitor may see them."""
        approvals: dict[str, Json] = {}
        for approval_id in (step["approval"] for step in waiting if "approval" in step):
            with suppress(UnknownApprovalError):
                listing = await self._hub.read(principal, "show_approval", {"approval": approval_id})
                approvals[approval_id] = listing
        return approvals

    async def _change_run(self, request: Request, principal: Principal) -> Response:
        entries = await read_entries(request)
        run, action = request.path_params["run"], entries.pop("action", "")
        if action not in ACTIONS:
            raise InvalidRequestError(f"action is {action[:40]!r}", remedy=f"one of {', '.join(ACTIONS)}")
        if action == "answer_approval":
            answer = {key: entries.get(key, "") for key in ("approval", "verdict", "comment")}
            (await self._hub.act(principal, action, answer)).get()
            return lead_to("runs", run)
        if action == "signal_run":
            question = await self._answer(principal, run, entries)
            if question is not None:
                return await self._show(request, principal, {entries["step"]: question})
            return lead_to("runs", run)
        arguments: Json = {"run": run, **{key: value for key, value in entries.items() if value}}
        value = (await self._hub.act(principal, action, arguments)).get()
        shown = value.get("run", run) if isinstance(value, Mapping) else run
        return lead_to("runs", str(shown))

    async def _answer(self, principal: Principal, run: str, entries: Mapping[str, str]) -> Question | None:
        """Answer a waiting step; returns its question where the answer does not fit it.

        Raises RetinueError where the step does not wait.
        """
        steps = (await self._hub.read(principal, "show_run", {"run": run}))["steps"]
        topic, path = entries.get("topic", ""), entries.get("step", "")
        step = next((waiting for waiting in find_waiting(steps) if path in ("", waiting["step"])), None)
        question = make_question(None if step is None else step.get("schema"))
        value, question = read_answer(question, entries)
        if not question.is_complete:
            return question
        arguments = {"run": run, "topic": topic, "value": value} | ({"step": path} if path else {})
        outcome = await self._hub.act(principal, "signal_run", arguments)
        if step is not None and path and isinstance(outcome.error, InvalidParametersError):
            return replace(question, problem=describe_error(outcome.error))
        outcome.get()
        return None


def _list_values(steps: Iterable[Json]) -> list[Any]:
    """The inputs and outputs of steps and of those within them."""
    values: list[Any] = []
    for step in steps:
        values += [step.get("input"), step.get("output"), *_list_values(step.get("steps", ()))]
    return values


def _result_of(step: Json) -> Any:
    """The parts of a step, in or beside its output, in the form of a value."""
    return {"parts": step["parts"]} if step.get("parts") else step.get("output")
