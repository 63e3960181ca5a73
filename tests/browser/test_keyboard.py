"""The dashboard by keyboard alone, in a real browser: reaching a form, sending it, and keeping the focus."""

from __future__ import annotations

import asyncio
from pathlib import Path

from playwright.async_api import Page, expect

from retinue.storage.state import State
from tests.browser.pages import open_browser, open_page
from tests.processes.running import program, write_agent

SUM = """
from retinue import Agent

agent = Agent("sum-agent", version="1.0.0")


@agent.skill(expose=True)
async def plus(a: int, b: int) -> int:
    \"\"\"Adds two numbers.\"\"\"
    return a + b
"""
MAX_STOPS = 60
"""More stops of the tab key than a page here has."""


async def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(MAX_STOPS):
        await page.keyboard.press("Tab")
        if await page.evaluate("(wanted) => document.activeElement.matches(wanted)", selector):
            return
    raise AssertionError(f"Tab never reaches {selector}")


async def test_a_skill_is_called_by_keyboard_and_the_focus_stays_when_a_row_above_goes(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "sum.py").write_text(SUM)
    first = write_agent(tmp_path, "aaa-agent", "1.0.0", "who", "one")
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        program("serve", "sum.py", cwd=tmp_path) as served,
        program("serve", str(first), cwd=tmp_path) as other,
    ):
        url = hub.url_in("hub at")
        served.wait_for("published")
        other.wait_for("published")
        async with open_browser() as browser, open_page(browser) as page:
            await page.goto(f"{url}/ui/sign-in")
            await tab_to(page, "#token")
            await page.keyboard.insert_text(State(retinue_home).local_token())
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            await page.goto(f"{url}/ui/agents/sum-agent/skills/plus")
            await tab_to(page, "[name='/a']")
            await page.keyboard.type("2")
            await tab_to(page, "[name='/b']")
            await page.keyboard.type("3")
            await page.keyboard.press("Enter")
            await expect(page.locator("section[aria-live] pre")).to_have_text("5")
            await page.goto(f"{url}/ui/agents")
            await expect(page.get_by_role("status")).to_have_text("live")
            await expect(page.get_by_role("link", name="aaa-agent")).to_be_visible()
            await tab_to(page, "a[href$='/agents/sum-agent']")
            await asyncio.to_thread(other.process.terminate)
            await expect(page.get_by_role("link", name="aaa-agent")).to_have_count(0)
            await expect(page.get_by_role("link", name="sum-agent")).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", level=1)).to_contain_text("sum-agent")
