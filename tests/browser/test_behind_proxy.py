"""The dashboard behind a reverse proxy with a path prefix, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from retinue.storage.state import State
from tests.browser.pages import open_browser, open_page
from tests.processes.proxying import Proxy, proxying
from tests.processes.running import program, write_agent

TOLD = {
    "X-Forwarded-Host": "{host}",
    "X-Forwarded-Proto": "{scheme}",
    "X-Forwarded-For": "203.0.113.9",
    "X-Forwarded-Prefix": "/mesh",
}
TRUSTED = {"RETINUE_DOORS__PROXIES": '["127.0.0.1/32"]', "RETINUE_AUTH__ANONYMOUS": "false"}


@pytest.mark.parametrize("way", ["told", "advertised", "advertised-unstripped"])
async def test_links_forms_streams_and_the_cookie_have_the_prefix_of_a_proxy(
    tmp_path: Path, retinue_home: Path, way: str
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    is_told = way == "told"
    proxy = Proxy("/mesh", strips=way != "advertised-unstripped", tells=TOLD if is_told else {})
    proxy.keeps_host = not is_told
    with proxying(proxy):
        advertise = () if is_told else ("--advertise", proxy.url)
        with (
            program("hub", "--bare", "--port", "0", *advertise, cwd=tmp_path, environment=TRUSTED) as hub,
            program("serve", str(agent), cwd=tmp_path, environment=TRUSTED) as served,
        ):
            proxy.upstream = hub.url_in("hub at")
            served.wait_for("published")
            async with open_browser() as browser, open_page(browser) as page:
                await page.goto(f"{proxy.url}/")
                assert page.url.startswith(f"{proxy.url}/ui/sign-in")
                await page.fill("#token", State(retinue_home).local_token())
                await page.get_by_role("button", name="Sign in").click()
                await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
                (cookie,) = await page.context.cookies()
                assert cookie.get("path") == "/mesh/"
                await page.get_by_role("link", name="Agents", exact=True).click()
                await expect(page.get_by_role("status")).to_have_text("live")
                await page.get_by_role("link", name="one-agent").click()
                await page.get_by_role("link", name="who", exact=True).click()
                await page.get_by_role("button", name="Call").click()
                await expect(page.locator("section[aria-live] pre")).to_have_text("one")
                assert page.url == f"{proxy.url}/ui/agents/one-agent/skills/who"
                await page.get_by_role("button", name="Sign out").click()
                await expect(page.get_by_label("Token")).to_be_visible()
                assert await page.context.cookies() == []
