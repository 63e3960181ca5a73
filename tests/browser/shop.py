"""A mesh with a shop: a hub and an agent in processes of their own, its stored workflow and its pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect

from tests.processes.running import Program, execute

SHOP = '''
from typing import Literal

from pydantic import BaseModel

from retinue import Agent, Context

agent = Agent("shop-agent", version="1.2.0", description="Sells <b>things</b> <script>alert(1)</script>")


class Item(BaseModel):
    name: str
    count: int = 1


@agent.skill(expose=True)
async def order(item: Item, speed: Literal["slow", "fast"] = "slow", notes: list[str] = []) -> dict:
    """Orders an item."""
    return {"ordered": item.model_dump(), "speed": speed, "notes": notes}


@agent.skill(expose=True)
async def twice(n: int, ctx: Context) -> int:
    """Doubles a number."""
    return await ctx.call("plus", {"a": n, "b": n})


@agent.skill(expose=True)
async def plus(a: int, b: int) -> int:
    """Adds <img src=x onerror=alert(2)> two numbers."""
    return a + b


@agent.skill(expose=True, roles=["execute"])
async def say(prompt: str) -> str:
    """Answers."""
    return "yes"


@agent.skill(expose=True)
async def fail(text: str) -> str:
    """Fails."""
    raise ValueError(f"no {text}")
'''
WORKFLOW = """
name: approve
description: Add after an approval
input: {type: object, properties: {n: {type: integer, description: A number}}, required: [n]}
steps:
  - {id: first, skill: plus, with: {a: "${{ input.n }}", b: 1}}
  - {id: ask, wait_for: {topic: approval, message: May it go on?}, timeout: 10m}
  - {id: last, skill: plus, with: {a: "${{ steps.first.output }}", b: 10}}
output: {sum: "${{ steps.last.output }}"}
"""
PAGES = [
    "/",
    "/ui/agents",
    "/ui/agents?q=add+two+numbers",
    "/ui/agents?q=of+this+there+is+none",
    "/ui/agents/shop-agent",
    "/ui/agents/shop-agent/skills/order",
    "/ui/calls",
    "/ui/calls?failed=1",
    "/ui/runs",
    "/ui/approvals",
    "/ui/workflows",
    "/ui/workflows/plan-execute",
    "/ui/workflows/new/draft",
    "/ui/mesh",
    "/ui/sign-in",
]


VOTE = {
    "name": "ask-two",
    "steps": [{"id": "ask", "parallel": {"mode": "vote", "role": "execute", "prompt": "Which?"}}],
}


@dataclass
class Running:
    """A hub with one agent."""

    folder: Path
    url: str
    hub: Program
    agent: Program
    token: str


def list_pages(running: Running) -> list[str]:
    """The paths of all pages, of a trace and of three runs: one that waits for an answer, done and failed."""

    def act(skill: str, arguments: Any) -> Any:
        return execute(running.url, skill, arguments, running.token)["result"]

    waiting = act("start_run", {"workflow": "approve", "input": {"n": 4}})["run"]
    voted = act("orchestrate_workflow", {"workflow": VOTE, "input": {}, "run": "voted"})
    assert voted["output"] == "yes"
    failing = {"name": "failing", "steps": [{"id": "no", "skill": "fail", "with": {"text": "tea"}}]}
    execute(
        running.url,
        "orchestrate_workflow",
        {"workflow": failing, "input": {}, "run": "failed"},
        running.token,
    )
    trace = ""
    while not trace:
        shown = act("show_run", {"run": waiting})
        if any(step["status"] == "waiting" for step in shown["steps"]):
            trace = shown["trace"]
    runs = [f"/ui/runs/{run}" for run in (waiting, "voted", "failed", "voted?step=ask", "failed?failed=1")]
    return [*PAGES, f"/ui/traces/{trace}", *runs]


async def sign_in(page: Page, url: str, token: str) -> None:
    await page.goto(f"{url}/ui/sign-in")
    await page.fill("#token", token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
