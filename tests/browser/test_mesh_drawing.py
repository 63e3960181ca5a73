"""The picture of the mesh in a real browser: text stays in its box, and what is cut is in the title."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import expect

from retinue.storage.state import State
from tests.browser.pages import open_browser, open_page
from tests.processes.running import program

FITS = "search.mesh.example.com:5000"
LONG = "registry-of-the-second-department.internal.example.com:5000"
SETTINGS = f"""
registries = ["http://{LONG}"]

[discovery]
upstreams = ["http://{FITS}"]
"""
TOO_WIDE = """() => [...document.querySelectorAll('svg.graph g.node')].flatMap(node => {
  const box = node.querySelector('rect').getBBox();
  return [...node.querySelectorAll('text')].filter(text => {
    const own = text.getBBox();
    return own.x < box.x || own.x + own.width > box.x + box.width;
  }).map(text => text.textContent);
})"""


async def test_a_label_stays_in_its_box_and_its_title_has_all_of_it(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "retinue.toml").write_text(SETTINGS)
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        async with open_browser() as browser, open_page(browser) as page:
            await page.goto(f"{url}/ui/sign-in")
            await page.fill("#token", State(retinue_home).local_token())
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            await page.goto(f"{url}/ui/mesh")
            labels = await page.locator("svg.graph g.node text:not(.sub)").all_text_contents()
            assert FITS in labels
            assert any(label.endswith("…") and LONG.startswith(label[:-1]) for label in labels), labels
            titles = await page.locator("svg.graph g.node title").all_text_contents()
            assert any(LONG in title for title in titles)
            assert await page.evaluate(TOO_WIDE) == []
