"""The results of calls as the model reads them.

A result is data of an agent, and never an instruction: it stands between marks that it cannot contain,
without hidden characters.
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
from retinue.thinking.large_results import write_cut


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
    text = write_cut(value) or text_of_value(without_bytes(value))
    unseen = [part for part in parts if part.kind not in ("image", "text") and part not in held]
    if unseen:
        text += f"\n(beside it: {', '.join(f'{part.kind} {part.mime}' for part in unseen)}, not shown)"
    images = [part for part in parts if part.kind == "image"]
    content = Part.text(fence(f"the result of {source}", strip_hidden(text)))
    return ToolResult(call.id, call.name, (content, *images))


def text_of_result(result: ToolResult) -> str:
    """The part of a result that the model reads."""
    return "\n".join(str(part.value) for part in result.content if part.kind == "text")


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


def answer(call: ToolCall, text: str) -> ToolResult:
    """The result of a call that the loop itself answers."""
    return ToolResult(call.id, call.name, (Part.text(text),))


def explain_problems(problems: Sequence[Problem]) -> str:
    """Problems of arguments or of an answer, each in a line, with what was probably meant."""
    rows = [f"- {problem.message}" + (f" ({problem.hint})" if problem.hint else "") for problem in problems]
    return "\n".join(rows[:20])
