"""What agents, workflows and runs say is text: nothing runs, and the layout holds at 360 pixels."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from playwright.async_api import Page, expect

from retinue.storage.state import State
from tests.browser.pages import open_browser, open_page
from tests.processes.running import execute, program

MARKUP = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>"
    "<style>*{display:none}</style>"
    "<a href='javascript:alert(4)'>x</a>{{ 7 * 7 }}{% raw %}</textarea></pre><base href=//evil.example>"
)
HIDDEN = "\u202eevil\u2066\u0007\x1b[31m\U000e0041"
HOSTILE = f"""
from retinue import Agent

MARKUP = {MARKUP!r}
WORD = MARKUP + "w" * 900
agent = Agent("bad-agent", version="1.0.0", title=WORD, description=MARKUP + "d" * 500_000)
schema = {{
    "type": "object",
    "title": WORD,
    "properties": {{
        MARKUP: {{"type": "string", "title": WORD, "description": WORD, "default": WORD}},
        "long": {{"type": "string", "default": "x" * 12_000}},
        "w" * 3_000: {{"type": "integer"}},
        "few": {{"enum": [MARKUP, WORD]}},
        "many": {{"enum": [f"{{MARKUP}}{{n}}" for n in range(60)]}},
        "group": {{"type": "object", "title": MARKUP, "properties": {{"a/b~c": {{"type": "boolean"}}}}}},
    }},
}}


@agent.skill("say", description=MARKUP + "s" * 50_000, input_schema=schema, expose=True)
async def say(arguments: dict = {{}}) -> str:
    return MARKUP + {HIDDEN!r} + "r" * 100_000


@agent.skill("fail", description=MARKUP, expose=True)
async def fail() -> str:
    raise ValueError(MARKUP + {HIDDEN!r} + "e" * 50_000)


def add(number: int) -> None:
    @agent.skill(f"many_{{number}}_" + "x" * 40, description=WORD[:150], expose=True)
    async def one() -> int:
        return number


for number in range(900):
    add(number)
"""
PLAIN = re.sub("['{}]", "", MARKUP)
WORKFLOW = f"""
name: bad
description: '{PLAIN * 5}'
input: {{type: object, title: '{PLAIN}', properties: {{n: {{type: string}}}}}}
steps:
  - id: ask
    wait_for: {{topic: approval, message: '{PLAIN * 10}'}}
"""
MAX_PAGE = 150_000


async def check(page: Page, path: str) -> None:
    """The page is small, as wide as the window, and shows its text."""
    reply = await page.goto(path)
    assert reply is not None
    assert reply.status == 200, path
    assert len(await reply.body()) < MAX_PAGE, path
    await check_layout(page)


async def check_layout(page: Page) -> None:
    width = await page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= 360, f"{page.url} is {width} pixels wide"
    assert (
        await page.locator(
            "main script, main style, main base, main img, main [onload], main [onerror]"
        ).count()
        == 0
    )
    shown = await page.locator("body").inner_text()
    assert not set(HIDDEN) - set("evil[31m") & set(shown), page.url


async def test_nothing_that_an_agent_or_a_workflow_says_runs_or_breaks_a_page(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "bad.py").write_text(HOSTILE)
    stored = retinue_home / "workflows"
    stored.mkdir(parents=True)
    (stored / "bad.yaml").write_text(WORKFLOW)
    (stored / "worse.yaml").write_text(f"name: [{MARKUP}")
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        program("serve", "bad.py", cwd=tmp_path) as agent,
    ):
        url = hub.url_in("hub at")
        agent.wait_for("published")
        token = State(retinue_home).local_token()
        given = {"workflow": "bad", "input": {"n": MARKUP + HIDDEN + "n" * 100_000}}
        started = await asyncio.to_thread(execute, url, "start_run", given, token)
        run = started["result"]["run"]
        execute(url, "fail", {}, token)
        dialogs: list[str] = []
        async with (
            open_browser() as browser,
            open_page(browser, viewport={"width": 360, "height": 740}) as page,
        ):
            page.on("dialog", lambda dialog: dialogs.append(dialog.message))
            await page.goto(f"{url}/ui/sign-in")
            await page.fill("#token", token)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            for path in (
                "/",
                "/ui/agents",
                "/ui/agents?q=script",
                "/ui/agents/bad-agent",
                "/ui/agents/bad-agent?from=800",
                "/ui/agents/bad-agent/skills/fail",
                "/ui/agents/bad-agent/skills/say?as=json",
                "/ui/calls",
                f"/ui/calls?skill={MARKUP.replace('%', '%25').replace('#', '%23').replace('&', '%26')}",
                "/ui/runs",
                f"/ui/runs/{run}",
                "/ui/workflows",
                "/ui/workflows/bad",
                "/ui/workflows/new/draft?from=bad",
                "/ui/mesh",
            ):
                await check(page, f"{url}{path}")
            for skill in ("fail", "say"):
                await check(page, f"{url}/ui/agents/bad-agent/skills/{skill}")
                await page.get_by_role("button", name="Call").click()
                await expect(page.locator("section[aria-live]")).to_be_visible()
                await check_layout(page)
            await page.goto(f"{url}/ui/runs/{run}")
            await page.get_by_label("Answer").fill(MARKUP)
            await page.get_by_role("button", name="Answer").click()
            await expect(page.get_by_role("heading", level=1)).to_contain_text("done")
            await check(page, f"{url}/ui/runs/{run}")
        assert dialogs == []
