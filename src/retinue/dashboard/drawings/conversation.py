"""Arranges the recorded steps of a loop (a step ``think``) as a conversation, in pages of turns.

A turn is the text of the model and the calls that it asked for. A call without a step of its own was answered
by the loop itself: its tool is unknown, its arguments do not fit, it was repeated, or a person refused it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from retinue.core.artifact_links import find_links
from retinue.core.call import TextPiece
from retinue.core.json_values import text_of
from retinue.core.parts import without_bytes
from retinue.core.usage import sum_usages
from retinue.thinking.large_results import CUT
from retinue.thinking.read_tool import READ_RESULT
from retinue.thinking.toolbox import FIND_SKILLS

Json = dict[str, Any]

KIND = "think"
"""The kind of a step that is a loop."""

TURNS = 25
"""Turns of one page."""

MAX_CALLS = 60
"""Calls of one page."""

PAGE_CHARACTERS = 30_000
"""Characters of all texts, arguments and results of one page; then they are cut to `LEAST_CHARACTERS`."""

MOST_CHARACTERS = 5_000
LEAST_CHARACTERS = 80

_TURN = re.compile(r"/turn-(\d+)$")
_CONDENSED = re.compile(r"/condense-\d+$")
_ANSWER = re.compile(r"/answer-\d+$")
_HINT_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text with the most characters of it that its page shows; ``note`` says what it is part of."""

    text: str
    limit: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A person's approval of a call: ``verdict`` is yes, no, "" while the question is open, or "expired"."""

    verdict: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call of a turn; ``path`` is its step, "" if it was not made, ``hint`` its arguments in one line."""

    tool: str
    status: str
    path: str = ""
    hint: str = ""
    arguments: ShownText | None = None
    result: ShownText | None = None
    error: ShownText | None = None
    duration_ms: float | None = None
    question: Question | None = None
    files: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Condensing:
    """A request for a summary, which stands in place of older messages from then on; ``what`` are they."""

    path: str
    status: str
    what: str
    notes: ShownText | None = None


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """A turn; ``is_writing`` = the text is what the model has written of it so far.

    ``condensed`` are the summaries that were made before it.

    ``usage`` is what the request used, together with what its calls spent on models. ``more_calls`` = calls
    that the page has no room for. ``extended`` are the limits that were raised after this turn.
    """

    number: int
    path: str
    status: str
    agent: str = ""
    text: ShownText | None = None
    is_writing: bool = False
    calls: Sequence[ShownCall] = ()
    more_calls: int = 0
    error: ShownText | None = None
    attempts: int = 1
    duration_ms: float | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish: str = ""
    extended: Sequence[Mapping[str, Any]] = ()
    condensed: Sequence[Condensing] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """One page of a loop: ``turns`` of ``total``; ``loop`` is its plan, ``usage`` and ``calls`` of all turns.

    ``limit`` is the error of the limit that ended it. ``before`` and ``after`` are the first turns of the
    pages around this one.
    """

    path: str
    status: str
    loop: Mapping[str, Any]
    turns: Sequence[ShownTurn]
    total: int
    calls: int
    usage: Mapping[str, Any]
    limit: Mapping[str, Any] | None
    before: int | None
    after: int | None

    def ends_with(self, output: Any) -> bool:
        """Whether the page shows this output of its run whole, as the text of the last turn."""
        text = self.turns[-1].text if self.turns and self.after is None else None
        return text is not None and len(text.text) <= text.limit and text.text == output


def find_loop(steps: Sequence[Json], within: Json | None) -> Json | None:
    """The loop of a page: the step that it is about, or the only loop of a run; None without one."""
    if within is not None:
        return within if within.get("kind") == KIND and _list_turns(within) else None
    loops = [step for step in steps if step.get("kind") == KIND and _list_turns(step)]
    return loops[0] if len(loops) == 1 else None


def read_conversation(loop: Json, first: int = 0, writing: Mapping[str, str] | None = None) -> Conversation:
    """The page of a loop that begins with the turn ``first``; 0 = the newest turns.

    ``writing`` are the texts that are being written, by the path of their request.
    """
    turns = _list_turns(loop)
    start = min(first - 1, len(turns) - 1) if first > 0 else max(0, len(turns) - TURNS)
    shown = turns[start : start + TURNS]
    room = _Room()
    usage = [usage for turn in turns for usage in _list_usages(turn)]
    condensed = _list_condensed(loop)
    usage += [usage for steps in condensed.values() for usage in _list_usages({"steps": steps})]
    error = loop.get("error") or {}
    end = start + TURNS
    is_open = loop.get("status") in ("running", "waiting")
    # the newest first, because the answer is worth the room
    read = [
        replace(
            _read_turn(turn, loop, room, writing or {}, is_open=is_open and turn is turns[-1]),
            condensed=[_read_condensing(step, room) for step in condensed.get(turn["step"], ())],
        )
        for turn in reversed(shown)
    ]
    return Conversation(
        path=loop["step"],
        status=str(loop.get("status", "")),
        loop=loop.get("loop") or {},
        turns=read[::-1],
        total=len(turns),
        calls=sum(len(_reply_of(_children(turn)).get("calls") or ()) for turn in turns),
        usage=_sum(usage),
        limit=error if error.get("type") == "limited" else None,
        before=max(1, start - TURNS + 1) if start else None,
        after=end + 1 if end < len(turns) else None,
    )


def join_texts(reports: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The texts that steps have written so far, by step; "…" stands where pieces are missing."""
    texts: dict[str, str] = {}
    ends: dict[str, int] = {}
    for report in reports:
        piece = TextPiece.from_json(report)
        if piece is None or not piece.step:
            continue
        before = texts.get(piece.step, "") if piece.at else ""
        gap = "…" if piece.at != (ends.get(piece.step, 0) if piece.at else 0) else ""
        texts[piece.step] = f"{before}{gap}{piece.text}"
        ends[piece.step] = piece.end
    return texts


class _Room:
    """The characters and the calls that a page still has room for."""

    def __init__(self) -> None:
        self._characters = PAGE_CHARACTERS
        self.calls = MAX_CALLS

    def show(self, text: str, note: str = "", most: int = MOST_CHARACTERS) -> ShownText:
        limit = max(LEAST_CHARACTERS, min(most, self._characters))
        self._characters -= min(len(text), limit)
        return ShownText(text[: limit + 1], limit, note)


def _list_turns(loop: Json) -> list[Json]:
    """The turns of a loop that have a request, without places that only have the record of its end."""
    return [step for step in loop.get("steps") or () if _TURN.search(step["step"]) and _has_request(step)]


def _list_condensed(loop: Json) -> dict[str, list[Json]]:
    """The requests for summaries, by the path of the turn that follows them."""
    condensed: dict[str, list[Json]] = {}
    waiting: list[Json] = []
    for step in loop.get("steps") or ():
        if _CONDENSED.search(step["step"]):
            waiting.append(step)
        elif _TURN.search(step["step"]) and _has_request(step):
            condensed[step["step"]], waiting = waiting, []
    return condensed


def _read_condensing(step: Json, room: _Room) -> Condensing:
    asked, reply = step.get("input"), step.get("output")
    facts = asked if isinstance(asked, Mapping) else {}
    text = reply.get("text") if isinstance(reply, Mapping) else None
    what = str(facts.get("condenses", "older messages"))
    return Condensing(step["step"], str(step.get("status", "")), what, room.show(str(text)) if text else None)


def _has_request(turn: Json) -> bool:
    return any(step["step"] == f"{turn['step']}/model" for step in turn.get("steps") or ())


def _children(turn: Json) -> dict[str, Json]:
    """The steps of a turn by the last part of their path."""
    return {step["step"].rpartition("/")[2]: step for step in turn.get("steps") or ()}


def _reply_of(steps: Mapping[str, Json]) -> Mapping[str, Any]:
    reply = (steps.get("model") or {}).get("output")
    return reply if isinstance(reply, Mapping) else {}


def _list_usages(turn: Json) -> Iterator[Mapping[str, Any]]:
    for step in turn.get("steps") or ():
        if isinstance(usage := step.get("usage"), Mapping):
            yield usage


def _sum(usages: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The tokens and the money of usages together."""
    total = sum_usages(list(usages)) or {}
    return {key: number for key, number in total.items() if isinstance(number, int | float)}


def _read_turn(
    turn: Json, loop: Json, room: _Room, writing: Mapping[str, str], *, is_open: bool
) -> ShownTurn:
    """A turn; ``is_open`` = its calls may still begin."""
    steps = _children(turn)
    model, reply = steps["model"], _reply_of(steps)
    text = reply.get("text") or (text_of(reply["output"]) if reply.get("output") is not None else "")
    is_writing = not reply and model.get("status") == "running"
    if is_writing:
        text = writing.get(model["step"], "")
    requested_calls = reply.get("calls") or ()
    shown = requested_calls[: max(0, room.calls)]
    room.calls -= len(shown)
    error = model.get("error")
    match = _TURN.search(turn["step"])
    shown_text = room.show(str(text)) if text else None
    names = {tool.replace("/", "__"): tool for tool in (loop.get("loop") or {}).get("tools", ())}
    calls = [_read_call(call, number, steps, room, names) for number, call in enumerate(shown, 1)]
    if is_open:
        calls = [replace(call, status="to come") if call.status == "not made" else call for call in calls]
    return ShownTurn(
        number=int(match[1]) if match else 0,
        path=turn["step"],
        status=str(model.get("status", "")),
        agent=str(model.get("agent", "")),
        text=shown_text,
        is_writing=is_writing,
        calls=calls,
        more_calls=len(requested_calls) - len(shown),
        error=None if error is None else room.show(str(error.get("message", ""))),
        attempts=len(model.get("attempts") or ()),
        duration_ms=model.get("duration_ms"),
        usage=_sum(_list_usages(turn)),
        finish=str(reply.get("finish", "")),
        extended=[
            {"limits": row["limits"]}
            for row in loop.get("extended") or ()
            if row["after"].startswith(f"{turn['step']}/")
        ],
    )


def _read_call(
    call: Mapping[str, Any], number: int, steps: Mapping[str, Json], room: _Room, names: Mapping[str, str]
) -> ShownCall:
    """A call of a reply, with the step that it became, or with why it became none."""
    name, arguments = str(call.get("name", "")), call.get("arguments")
    hint = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    shown_arguments = room.show(_indent(arguments))
    question = _find_question(steps, f"/call-{number}")
    step = steps.get(f"call-{number}")
    if step is None and name == FIND_SKILLS and (search := steps.get("found")) is not None:
        hits = search.get("output")
        listed = "\n".join(hits) if hits else "Nothing new."
        return ShownCall(
            name,
            str(search.get("status") or "done"),
            path=search["step"],
            hint=hint[: _HINT_CHARACTERS + 1],
            arguments=shown_arguments,
            result=room.show(listed) if hits is not None else None,
            duration_ms=search.get("duration_ms"),
        )
    if step is None and name == READ_RESULT and (read := steps.get("read")) is not None:
        parts = (read.get("output") or {}).get("parts", ())
        part = next((part for part in parts if part.get("call") == call.get("id")), None)
        if part is not None:
            problem = part.get("problem")
            return ShownCall(
                name,
                "done" if problem is None else "failed",
                path=read["step"],
                hint=hint[: _HINT_CHARACTERS + 1],
                arguments=shown_arguments,
                result=room.show(str(part.get("text")), str(part.get("place"))) if problem is None else None,
                error=None if problem is None else room.show(str(problem)),
                duration_ms=read.get("duration_ms"),
            )
    if step is None:
        return ShownCall(
            names.get(name, name),
            _status_without_step(question),
            hint=hint[: _HINT_CHARACTERS + 1],
            arguments=shown_arguments,
            question=question,
        )
    error, value = step.get("error"), step.get("output")
    return ShownCall(
        f"{step.get('agent', '')}/{step.get('skill', '')}" if "skill" in step else name,
        str(step.get("status", "")),
        path=step["step"],
        hint=hint[: _HINT_CHARACTERS + 1],
        arguments=shown_arguments,
        result=_show_result(value, room) if "output" in step else None,
        error=None if error is None else room.show(_write_error(error)),
        duration_ms=step.get("duration_ms"),
        question=question,
        files=list(find_links(value))[:10] if isinstance(value, Mapping | list) else (),
    )


def _find_question(steps: Mapping[str, Json], end: str) -> Question | None:
    for key, step in steps.items():
        if _ANSWER.search(f"/{key}") and str(step.get("call", "")).endswith(end):
            answer = step.get("output")
            if step.get("error") is not None:
                return Question("expired")
            if not isinstance(answer, Mapping):
                return Question("")
            return Question(
                "yes" if answer.get("verdict") == "yes" else "no", str(answer.get("comment") or "")
            )
    return None


def _status_without_step(question: Question | None) -> str:
    if question is None:
        return "not made"
    return "waiting" if question.verdict == "" else "refused" if question.verdict != "yes" else "not made"


def _show_result(value: Any, room: _Room) -> ShownText:
    cut = value.get(CUT) if isinstance(value, Mapping) else None
    if isinstance(cut, Mapping):
        note = f"{cut.get('size_bytes', 0):,} bytes, {cut.get('shape', '')}; the beginning:"
        return room.show(str(cut.get("head", "")), note)
    return room.show(value if isinstance(value, str) else _indent(without_bytes(value)))


def _write_error(error: Mapping[str, Any]) -> str:
    remedy = error.get("remedy")
    return f"{error.get('type', 'error')}: {error.get('message', '')}" + (f" ({remedy})" if remedy else "")


def _indent(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
