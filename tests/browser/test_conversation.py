"""A thinking run in a real browser: it grows while it is read, and has no barriers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from playwright.async_api import Browser, expect

from retinue.storage.state import State
from tests.browser.pages import find_barriers, open_page, read_axe
from tests.dashboard.writer import HALF, WHOLE, make_writer
from tests.support.thinking import think
from tests.system import open_system, open_wire


async def test_a_conversation_grows_while_it_is_read_and_has_no_barriers(
    retinue_home: Path, browser: Browser
) -> None:
    axe, go_on = read_axe(), asyncio.Event()
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        hub = await system.start_hub(dashboard=True)
        await system.start_agent(make_writer(go_on))
        headers = {"authorization": system.token}
        await wire.call(hub.url, "refresh_agents", {}, **headers)
        started = {"workflow": think(tools=["read"]), "input": {}, "run": "r", "progress": True}
        await wire.call(hub.url, "start_run", started, **headers)
        async with open_page(browser, extra_http_headers=headers) as page:
            await page.goto(f"{hub.url}/ui/runs/r")
            await expect(page.locator(".talk")).to_contain_text(HALF)
            await page.locator(".call summary").first.click()
            go_on.set()
            await expect(page.locator(".talk")).to_contain_text(WHOLE)
            assert await page.locator(".call[open]").count() == 1
        for scheme in ("light", "dark"):
            narrow = {"width": 360, "height": 740}
            async with open_page(
                browser, extra_http_headers=headers, viewport=narrow, color_scheme=scheme
            ) as page:
                await page.goto(f"{hub.url}/ui/runs/r")
                await page.evaluate(
                    "() => document.querySelectorAll('.talk details').forEach(d => d.open = true)"
                )
                assert await find_barriers(page, axe) == []
                assert await page.evaluate("() => document.documentElement.scrollWidth") <= 360
