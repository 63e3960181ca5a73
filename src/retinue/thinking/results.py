"""The results of calls as the model reads them.

A result is data of an agent, and never an instruction: it stands between marks that it cannot contain,
without hidden characters. A large one is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from retinue.core.call import Part
from retinue.core.errors import Problem
from retinue.core.foreign_text import strip_hidden
from retinue.core.parts import find_parts, read_parts, without_bytes
from retinue.core.remote_faults import describe_for_model
from retinue.core.text import fence, hide_tokens
from retinue.thinking.completion import ToolCall, ToolResult

MAX_RESULT_BYTES = 20_000
"""Of a longer text the model reads the beginning only."""

CUT = "retinue/cut"
"""The key of the value that is recorded in place of a large one."""

_HEAD_BYTES = 8_000


def shorten_result(value: Any) -> Any:
    """The value as the run records it: a large one as its beginning, with its size and shape.

    Images and files are no text: their own limit holds.
    """
    if find_parts(value):
        return value
    text = text_of_value(value)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size <= MAX_RESULT_BYTES:
        return value
    head = text.encode("utf-8", "surrogatepass")[:_HEAD_BYTES].decode("utf-8", "ignore")
    return {CUT: {"size_bytes": size, "shape": describe_shape(value), "head": head}}


def describe_shape(value: Any) -> str:
    """The outermost form of a value in a few words."""
    if isinstance(value, Mapping):
        keys = ", ".join(list(map(str, value))[:20])
        return f"an object with the keys {keys}{', …' if len(value) > 20 else ''}"
    if isinstance(value, list):
        return f"a list of {len(value):,} items"
    return f"a text of {len(value):,} characters" if isinstance(value, str) else "a value"


def text_of_value(value: Any) -> str:
    """A value as text: a text itself, all others as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def render_result(
    call: ToolCall, source: str, value: Any, beside: Sequence[Mapping[str, Any]] = ()
) -> ToolResult:
    """The result of a call of the skill ``source``: its text as data, and its images.

    ``beside`` are the parts that the value does not hold.
    """
    held = find_parts(value)
    parts = [*held, *read_parts(None, list(beside))]
    text = _write_cut(value) or text_of_value(without_bytes(value))
    unseen = [part for part in parts if part.kind not in ("image", "text") and part not in held]
    if unseen:
        text += f"\n(beside it: {', '.join(f'{part.kind} {part.mime}' for part in unseen)}, not shown)"
    images = [part for part in parts if part.kind == "image"]
    content = Part.text(fence(f"the result of {source}", strip_hidden(text)))
    return ToolResult(call.id, call.name, (content, *images))


def _write_cut(value: Any) -> str:
    """The text of a value that was cut; "" for another value."""
    cut = value.get(CUT) if isinstance(value, Mapping) else None
    if not isinstance(cut, Mapping):
        return ""
    note = f"cut: {cut['size_bytes']:,} bytes in all, {cut['shape']}; only the beginning follows"
    return f"({note})\n{cut['head']}"


def render_fault(call: ToolCall, source: str, fault: Mapping[str, Any]) -> ToolResult:
    """The failure of a call of the skill ``source``: its kind, its message, and what may help."""
    facts = {**(fault.get("data") or {}), "remedy": fault.get("remedy")}
    described = hide_tokens(describe_for_model(str(fault.get("message", "")), facts))
    text = fence(f"the error of {source}", strip_hidden(f"{fault.get('type', 'error')}: {described}"))
    if is_unknown(fault):
        text += "\nIt is unknown whether the call had its effect. Find out before you repeat it."
    elif fault.get("retryable"):
        text += "\nThe call may be tried again."
    return refuse(call, text)


def is_unknown(fault: Mapping[str, Any]) -> bool:
    """Whether a call that failed so may have had its effect."""
    kind, data = fault.get("on_error"), fault.get("data") or {}
    return kind in ("timeout", "cancelled") or (kind == "unreachable" and bool(data.get("sent")))


def refuse(call: ToolCall, text: str) -> ToolResult:
    """The result of a call that was not made, or that failed."""
    return ToolResult(call.id, call.name, (Part.text(text),), is_error=True)


def close_calls(calls: Sequence[ToolCall], results: Mapping[str, ToolResult]) -> list[ToolResult]:
    """A result for each call of a reply whose run was cancelled: those that are known, else "cancelled".

    A conversation that goes on later needs them, because providers refuse calls without results.
    """
    return [results.get(call.id) or refuse(call, "Cancelled before there was a result.") for call in calls]


def answer(call: ToolCall, text: str) -> ToolResult:
    """The result of a call that the loop itself answers."""
    return ToolResult(call.id, call.name, (Part.text(text),))


def explain_problems(problems: Sequence[Problem]) -> str:
    """Problems of arguments or of an answer, each in a line, with what was probably meant."""
    rows = [f"- {problem.message}" + (f" ({problem.hint})" if problem.hint else "") for problem in problems]
    return "\n".join(rows[:20])
