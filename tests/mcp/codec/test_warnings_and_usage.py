"""What a result over MCP tells besides its value: warnings, and what a model used."""

from __future__ import annotations

from typing import Any

from retinue.core.record import Skill
from retinue.mcp.codec.messages import Reply
from retinue.mcp.codec.tool_calls import read_answer
from retinue.web.codec.trace import USAGE_KEY, WARNINGS_KEY

SKILL = Skill("plan", output_schema={"type": "string"})


def reply(*texts: str, **meta: Any) -> Reply:
    content = [{"type": "text", "text": text} for text in texts]
    return Reply({"content": content, "_meta": meta}, None)


def test_a_text_with_a_warning_keeps_its_value() -> None:
    answer = read_answer(reply("the plan", "warning: cut", **{WARNINGS_KEY: ["cut"]}), "claude", SKILL)
    assert answer.value == "the plan"
    assert answer.parts == ()
    assert answer.warnings == ("cut",)


def test_a_text_that_only_looks_like_a_warning_stays() -> None:
    answer = read_answer(reply("warning: cut"), "claude", SKILL)
    assert (answer.value, answer.warnings) == ("warning: cut", ())
    answer = read_answer(reply("the plan", "warning: mine", **{WARNINGS_KEY: "no list"}), "claude", SKILL)
    assert len(answer.parts) == 2


def test_the_usage_is_read_from_the_meta_data() -> None:
    usage = {"input_tokens": 12, "output_tokens": 7, "cost_usd": 0.5, "model": "m"}
    assert read_answer(reply("x", **{USAGE_KEY: usage}), "claude", SKILL).usage == usage
    assert read_answer(reply("x", **{USAGE_KEY: "much"}), "claude", SKILL).usage is None
