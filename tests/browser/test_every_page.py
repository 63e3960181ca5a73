"""Every page in a real browser: no barrier for assistive technology, in both schemes and at 360 pixels.

`open_page` fails a test for each message on the console.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.browser.pages import find_barriers, open_page, read_axe
from tests.browser.shop import Running, list_pages, sign_in
from tests.processes.running import execute, wait_until


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_barrier_on_any_page(running: Running, browser: Browser, scheme: str) -> None:
    axe = read_axe()
    async with open_page(browser, color_scheme=scheme, viewport={"width": 360, "height": 740}) as page:
        await sign_in(page, running.url, running.token)
        for path in await asyncio.to_thread(list_pages, running):
            reply = await page.goto(f"{running.url}{path}")
            assert reply is not None
            assert reply.status == 200, path
            assert await find_barriers(page, axe) == [], path
            width = await page.evaluate("() => document.documentElement.scrollWidth")
            assert width <= 360, f"{path} is {width} pixels wide"
        await page.goto(f"{running.url}/ui/agents/shop-agent/skills/plus")
        for first, shown in (("two", "'two' is no whole number"), ("2", "Result")):
            await page.get_by_label("a required").fill(first)
            await page.get_by_label("b required").fill("3")
            await page.get_by_role("button", name="Call").click()
            await expect(page.locator("main")).to_contain_text(shown)
            assert await find_barriers(page, axe) == [], shown


POLICY = """@id("orders-of-many-things-are-decided-by-a-person") @reason("a person orders") @effect("approve")
forbid(principal, action == Retinue::Action::"call", resource == Retinue::Skill::"shop-agent/order");"""


async def test_approvals_and_policies_with_long_arguments_have_no_barrier_and_are_answered(
    running: Running, browser: Browser, retinue_home: Path
) -> None:
    (retinue_home / "policies").mkdir()
    (retinue_home / "policies" / "own.cedar").write_text(POLICY, "utf-8")
    item = {"name": "password: hunter2hunter2 " + "tea " * 5_000 + "x" * 300}

    def order() -> str:
        """The id of the approval that an order needs, once the policy is loaded."""
        reply: dict[str, Any] = {}

        def is_asked() -> bool:
            reply.update(execute(running.url, "order", {"item": item}, running.token))
            return "approval" in reply.get("error", {}).get("data", {})

        wait_until(is_asked, "the policy is loaded")
        return str(reply["error"]["data"]["approval"])

    approval = await asyncio.to_thread(order)
    owner, axe = (retinue_home / "keys" / "owner.token").read_text().strip(), read_axe()
    draft = "/ui/policies/draft"
    paths = ("/", "/ui/approvals", f"/ui/approvals/{approval}", "/ui/policies", draft, "/ui/calls")
    for scheme, width in (("light", 1280), ("dark", 360)):
        async with open_page(browser, color_scheme=scheme, viewport={"width": width, "height": 740}) as page:
            await sign_in(page, running.url, owner)
            for path in paths:
                await page.goto(f"{running.url}{path}")
                assert await find_barriers(page, axe) == [], path
                assert await page.evaluate(BROKEN_WORDS) == [], f"{path} at {width}"
                wide = await page.evaluate("() => document.documentElement.scrollWidth")
                assert wide <= width, f"{path} is {wide} pixels wide at {width}"
            if width == 1280:
                # the order that was asked about is replayed while the draft is typed
                await page.goto(f"{running.url}{draft}")
                closed = POLICY.replace('@effect("approve")', "").replace('@id("', '@id("closed-')
                await page.get_by_label("Cedar").fill(closed)
                await expect(page.locator("#checked")).to_contain_text("closed-orders-of-many-things")
                await page.get_by_label("Cedar").press_sequentially(" forbid(")
                await expect(page.locator("#checked")).to_contain_text("not Cedar")
            if width == 360:
                await page.goto(f"{running.url}/ui/approvals/{approval}")
                await page.get_by_role("button", name="Approve").click()
                await expect(page.locator("main")).to_contain_text("It is approved by owner.")


BROKEN_WORDS = """() => [...document.querySelectorAll('main td, main th, main label')].flatMap(cell => {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), broken = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const word of node.data.matchAll(/[^\\s\\-/]{1,24}(?=[\\s\\-/]|$)/g)) {
      if (node.data[word.index - 1]?.match(/[^\\s\\-/]/)) continue;
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map(rect => Math.round(rect.top)));
      if (tops.size > 1) broken.push(word[0]);
    }
  }
  return broken;
})"""
"""The words of tables, labels and links of up to 24 characters that have a line end within them."""

LONE_LABELS = """() => [...document.querySelectorAll('main form.filters label')].filter(label => {
  const field = label.querySelector('input, select');
  return !field || field.offsetParent === null;
}).map(label => label.textContent)"""


async def test_words_of_tables_stay_whole_and_narrow_tables_are_cards_without_heads(
    running: Running, browser: Browser
) -> None:
    reason = "GET https://api.example.com/repos/acme/shop-frontend/issues/9121?state=open: 404"
    for text in (reason, f"no permission {'x' * 90} for this"):
        await asyncio.to_thread(execute, running.url, "fail", {"text": text}, running.token)
    pages = await asyncio.to_thread(list_pages, running)
    for width in (1280, 390):
        async with open_page(browser, viewport={"width": width, "height": 800}) as page:
            await sign_in(page, running.url, running.token)
            for path in pages:
                await page.goto(f"{running.url}{path}")
                assert await page.evaluate(BROKEN_WORDS) == [], f"{path} at {width}"
                assert await page.evaluate(LONE_LABELS) == [], path
                wide = await page.evaluate("() => document.documentElement.scrollWidth")
                assert wide <= width, f"{path} is {wide} pixels wide at {width}"
                heads = page.locator("table.rows thead")
                if width == 390:
                    sizes = [await head.bounding_box() for head in await heads.all()]
                    assert all(size is None or size["width"] <= 1 for size in sizes), path


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_barrier_on_a_page_that_says_what_failed(
    running: Running, browser: Browser, scheme: str
) -> None:
    axe = read_axe()
    options = {"color_scheme": scheme, "viewport": {"width": 360, "height": 740}}
    async with open_page(browser, expected="status of 4", **options) as page:
        await sign_in(page, running.url, running.token)
        for path in ("/ui/agents/nosuch", "/ui/runs/nosuch", "/ui/workflows/nosuch", "/ui/link/used"):
            reply = await page.goto(f"{running.url}{path}")
            assert reply is not None
            assert 400 <= reply.status < 500, path
            await expect(page.get_by_role("heading", level=1)).to_have_text("This did not work")
            assert await find_barriers(page, axe) == [], path


async def test_every_page_can_be_read_without_scripts(running: Running, browser: Browser) -> None:
    async with open_page(browser, java_script_enabled=False) as page:
        await page.goto(f"{running.url}/ui/sign-in")
        await page.fill("#token", running.token)
        await page.get_by_role("button", name="Sign in").click()
        for path in await asyncio.to_thread(list_pages, running):
            reply = await page.goto(f"{running.url}{path}")
            assert reply is not None
            assert reply.status == 200, path
            assert len(await reply.body()) < 150_000
