"""A real browser for tests: Chromium of the system, driven by Playwright."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from scripts.npm_packages import InstallFailedError, install
from tests.services import get_program

ROOT = Path(__file__).resolve().parents[2]
AXE_FOLDER = ROOT / ".tools" / "browser-npm"
WAIT_MS = 60_000
"""A limit of failures, not a promise: pages are shown late on a machine that others use, too."""

expect.set_options(timeout=WAIT_MS)


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Chromium; where it is missing CI fails and a laptop skips, loudly."""
    path = get_program("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"], timeout=WAIT_MS
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page(browser: Browser, *, expected: str | None = None, **options: Any) -> AsyncIterator[Page]:
    """A page of its own context. Messages of the console and errors of scripts fail the test at the end.

    Messages with the text ``expected`` are in order: Chromium itself tells of a failed request.
    """
    context = await browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        is_expected = expected is not None and expected in message.text
        if message.type in ("error", "warning") and not is_expected:
            complaints.append(f"{message.type}: {message.text}")

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page
    finally:
        await context.close()
    assert not complaints


def read_axe() -> str:
    """The source of axe, from the lock file."""
    try:
        install(ROOT / "tests" / "browser" / "npm", AXE_FOLDER)
    except InstallFailedError as error:
        pytest.skip(f"npm could not install axe: {error}")
    return (AXE_FOLDER / "node_modules" / "axe-core" / "axe.min.js").read_text()


async def find_barriers(page: Page, axe: str) -> list[str]:
    """What axe finds on the page: the rule and the elements."""
    await page.evaluate(axe)
    found = await page.evaluate("async () => (await axe.run(document)).violations")
    return [f"{one['id']}: {[node['html'] for node in one['nodes'][:3]]}" for one in found]
