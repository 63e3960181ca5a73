"""Every page in a real browser: no barrier for assistive technology, in both schemes and at 360 pixels.

`open_page` fails a test for each message on the console.
"""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, expect

from tests.browser.pages import find_barriers, open_page, read_axe
from tests.browser.shop import Running, list_pages, sign_in


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
