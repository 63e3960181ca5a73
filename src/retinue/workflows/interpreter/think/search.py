"""The tool ``find_skills`` of a step ``think``: what the model finds are tools of the next request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.errors import StepFailedError
from retinue.thinking.completion import ToolCall, ToolResult
from retinue.thinking.conversation import list_found
from retinue.thinking.plan import ThinkPlan
from retinue.thinking.results import answer
from retinue.thinking.toolbox import MAX_FOUND, SEARCH, PinnedTool, Toolbox, digest_of, is_permitted
from retinue.workflows.caller import SkillOffer
from retinue.workflows.interpreter.frame import Frame
from retinue.workflows.interpreter.think.plan import pin_offers
from retinue.workflows.runs.records import as_json, read_json

FIND_S = 60.0

HITS = 5
"""Skills that one search gives."""

_LOOKED_AT = 100
"""Hits that are read, because not all of them may become tools."""

_FULL = "No further tools can be added: use the tools that you have."


async def find_tools(
    frame: Frame, plan: ThinkPlan, box: Toolbox, calls: Sequence[ToolCall], path: str, turn: str
) -> list[ToolResult]:
    """The results of searches; what they found is recorded and added to the tools."""

    async def effect() -> Any:
        searches = []
        extended = box.copy()
        origin, run_id = frame.request.origin, frame.context.run_id
        for call in calls:
            offers = await frame.tools.caller.find_skills(_what(call), origin, _LOOKED_AT, run_id=run_id)
            permitted = [
                offer for offer in offers if is_permitted(offer.agent, offer.skill, plan.patterns, plan.deny)
            ]
            known, new = _split(extended, permitted[:HITS] if SEARCH in plan.patterns else permitted)
            new = new[:HITS]
            room = MAX_FOUND - (len(extended) - len(plan.tools))
            pinned = pin_offers(new[:room], extended.names)
            extended.add(pinned)
            searches.append(
                {"known": known[:HITS], "tools": as_json(tuple(pinned)), "is_full": len(new) > len(pinned)}
            )
        return {"searches": searches}

    facts = {"kind": "find", "message": "; ".join(_what(call)[:100] for call in calls), "below": ""}
    outcome = await frame.context.step(f"{turn}/found", effect, timeout_s=FIND_S, facts=facts)
    if outcome.fault is not None:
        raise StepFailedError(path, None, as_json(outcome.fault))
    return [_answer(box, call, row) for call, row in zip(calls, outcome.value["searches"], strict=True)]


def _what(call: ToolCall) -> str:
    arguments = call.arguments
    return str(arguments.get("what", "")) if isinstance(arguments, Mapping) else ""


def _split(box: Toolbox, offers: Sequence[SkillOffer]) -> tuple[list[str], list[SkillOffer]]:
    """The names of the tools that the model has already, and the offers of further ones."""
    known: list[str] = []
    new: list[SkillOffer] = []
    for offer in offers:
        choice = offer.choice
        tool = box.find_skill(offer.agent, offer.skill, choice.version, digest_of(choice.input_schema))
        if tool is None:
            new.append(offer)
        else:
            known.append(tool.name)
    return known, new


def _answer(box: Toolbox, call: ToolCall, row: Mapping[str, Any]) -> ToolResult:
    """The result of one search, with the tools that it added."""
    added = [read_json(PinnedTool, stored) for stored in row["tools"]]
    box.add(added)
    known = [tool for name in row["known"] if (tool := box.find(name)) is not None]
    text = list_found([(tool.name, tool.description) for tool in [*added, *known]])
    return answer(call, f"{text}\n{_FULL}" if row["is_full"] else text)
