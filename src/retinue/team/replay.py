"""Compares the answers of a replay with the recorded ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retinue.team.change import compare_words
from retinue.team.trace import RecordedAnswer, RecordedCall

Verdict = Literal["equal", "different", "failed", "cannot tell"]
"""``failed`` = the recorded call has a result, the new one an error."""

VERDICTS: tuple[Verdict, ...] = ("equal", "different", "failed", "cannot tell")

_SIGNS: Mapping[Verdict, str] = {"equal": "=", "different": "~", "failed": "!", "cannot tell": "?"}
_MAX_SHOWN = 6
_MAX_CHARACTERS = 80
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One call of a trace and what came of it; ``details`` are lines of its difference."""

    call: RecordedCall
    verdict: Verdict
    text: str = ""
    details: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The call as JSON."""
        row = {"call": self.call.name, "verdict": self.verdict, "text": self.text}
        return {**row, "details": list(self.details)} if self.details else row

    def render(self) -> list[str]:
        """The call as lines of text."""
        text = f": {self.text}" if self.text else ""
        return [f"{_SIGNS[self.verdict]} {self.call.name}{text}"] + [f"    {line}" for line in self.details]


def judge(
    call: RecordedCall, answer: RecordedAnswer, *, message: str = "", unanswered: Sequence[str] = ()
) -> ReplayedCall:
    """Compare the new answer of a call with the recorded one.

    ``message`` is that of a new error. ``unanswered`` says for each request to a model that the trace has no
    reply to how it differs from the recorded ones; with one of them nobody can tell.
    """
    if unanswered:
        text = f"its model is asked something else: {unanswered[0]}"
        return ReplayedCall(call, "cannot tell", text)
    if any(path.startswith("arguments") for path in call.masked):
        return ReplayedCall(call, "cannot tell", "its arguments are masked in the trace")
    before = call.answer
    if answer.error is not None and before.error is None:
        return ReplayedCall(call, "failed", message or answer.error)
    if answer.error != before.error:
        text = f"error {before.error} → {answer.error or 'a result'}"
        return ReplayedCall(call, "different", text)
    details = [
        *_compare(before.value, answer.value, "result"),
        *_compare(list(before.parts), list(answer.parts), "parts"),
    ]
    if not details:
        return ReplayedCall(call, "equal")
    if call.masked:
        return ReplayedCall(call, "cannot tell", "its result is masked in the trace")
    more = [f"{len(details) - _MAX_SHOWN} more places"] if len(details) > _MAX_SHOWN else []
    text = f"{len(details)} {'place' if len(details) == 1 else 'places'}"
    return ReplayedCall(call, "different", text, (*details[:_MAX_SHOWN], *more))


def count_verdicts(calls: Sequence[ReplayedCall]) -> dict[Verdict, int]:
    """How many calls have each verdict."""
    counts = Counter(call.verdict for call in calls)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def exit_status(calls: Sequence[ReplayedCall]) -> int:
    """0 where some calls are equal and all others cannot be told, else 1."""
    counts = count_verdicts(calls)
    return 0 if counts["equal"] and not counts["different"] and not counts["failed"] else 1


def _compare(before: Any, after: Any, path: str) -> Iterator[str]:
    """The places where two JSON values differ, as lines."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _compare(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _compare(old, new, f"{path}[{place}]")
    elif isinstance(before, str) and isinstance(after, str):
        if before != after:
            places = compare_words(before, after)
            yield f"{path}: {_cut(' … '.join(places), 4 * _MAX_CHARACTERS)}"
    elif not _is_same(before, after):
        yield f"{path}: {_show(before)} → {_show(after)}"


def _is_same(before: Any, after: Any) -> bool:
    """Whether two values are the same in JSON, where 1 is 1.0 and true is not 1."""
    return isinstance(before, bool) == isinstance(after, bool) and bool(before == after)


def _show(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, list | Mapping):
        return f"{'list' if isinstance(value, list) else 'object'} of {len(value)}"
    return _cut(repr(value) if isinstance(value, str) else str(value), _MAX_CHARACTERS)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
