"""The dashboard in a real browser, over a hub and an agent in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from retinue.runtime.imports.files import open_pins, write_import
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.storage.state import State
from tests.browser.pages import ROOT, open_page
from tests.browser.shop import SHOP, Running, sign_in
from tests.processes.running import execute, program


async def test_a_stranger_tries_a_skill_approves_a_workflow_and_sees_the_trace(
    running: Running, browser: Browser
) -> None:
    with program("dashboard", "--no-browser", cwd=running.folder) as command:
        link = await asyncio.to_thread(command.wait_for, "/ui/link/")
    async with open_page(browser, expected="status of 403") as page:
        await page.goto(link)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await page.get_by_role("link", name="Agents", exact=True).click()
        await page.get_by_label("What should it do?").fill("add two numbers")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name="plus", exact=True).click()
        await page.get_by_label("a required").fill("two")
        await page.get_by_label("b required").fill("3")
        await page.get_by_role("button", name="Call").click()
        await expect(page.get_by_role("alert")).to_contain_text("'two' is no whole number")
        await page.get_by_label("a required").fill("2")
        await page.get_by_role("button", name="Call").click()
        await expect(page.locator("section[aria-live] pre")).to_have_text("5")
        await expect(page.locator("pre", has_text="retinue call")).to_contain_text('{"a": 2, "b": 3}')
        await page.get_by_role("link", name="Workflows").click()
        await page.get_by_role("link", name="approve").click()
        await page.get_by_label("n required").fill("4")
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_role("heading", name="May it go on?")).to_be_visible()
        await page.get_by_role("link", name="Overview").click()
        await expect(page.locator("#needs")).to_contain_text("waits for an answer: May it go on?")
        await page.locator("#needs").get_by_role("link", name="approve").click()
        await page.get_by_label("Answer").fill('{"yes": true}')
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator("pre", has_text='"sum": 15')).to_be_visible()
        await page.get_by_role("link", name="Calls of this run").click()
        await expect(page.get_by_role("heading", name="Trace")).to_be_visible()
        rows = page.locator("table.waterfall tbody tr")
        await expect(rows.filter(has_text="shop-agent · plus")).to_have_count(2)
        await expect(rows.filter(has_text="shop-agent · plus").first).to_contain_text("done")
        assert await page.locator("svg.bar").count() == await rows.count()
        assert await page.goto(link) is not None  # once only
        await expect(page.get_by_role("alert")).to_contain_text("used already")


async def test_calls_and_a_lost_hub_show_without_a_reload(running: Running, browser: Browser) -> None:
    async with open_page(browser, expected="net::ERR_") as page:
        await sign_in(page, running.url, running.token)
        await page.goto(f"{running.url}/ui/calls")
        await expect(page.get_by_role("status")).to_have_text("live")
        with program("call", "twice", '{"n": 21}', cwd=running.folder) as call:
            await asyncio.to_thread(call.wait_for, "42")
        await expect(page.locator("tbody tr", has_text="twice")).to_be_visible()
        running.hub.process.kill()
        await expect(page.get_by_role("status")).to_have_text("the hub does not answer")


async def test_seven_visible_tabs_share_one_stream_and_all_are_live(
    running: Running, browser: Browser
) -> None:
    context = await browser.new_context()
    streams: list[str] = []
    context.on("request", lambda request: streams.append(request.url) if "/ui/live" in request.url else None)
    try:
        pages = [await context.new_page() for _ in range(8)]
        for page in pages:
            await page.goto(f"{running.url}/ui/agents")
            await expect(page.get_by_role("status")).to_have_text("live")
        assert len(streams) == 1
        await pages[0].close()  # it held the stream
        await expect(pages[-1].get_by_role("link", name="shop-agent")).to_be_visible()
        running.agent.process.terminate()
        for page in pages[1:]:
            await expect(page.get_by_role("link", name="shop-agent")).to_have_count(0)
        assert len(streams) == 2
    finally:
        await context.close()


async def test_a_hidden_tab_gives_its_stream_back_and_takes_one_when_it_is_shown(
    running: Running, browser: Browser
) -> None:
    async with open_page(browser) as page:
        await page.goto(f"{running.url}/ui/agents")
        await expect(page.get_by_role("status")).to_have_text("live")
        async with page.expect_event("requestfailed", lambda request: "/ui/live" in request.url):
            await show(page, is_hidden=True)
        async with page.expect_request("**/ui/live"):
            await show(page, is_hidden=False)


async def show(page: Page, *, is_hidden: bool) -> None:
    """Tell the page that its tab is hidden or shown, as the browser does."""
    await page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', {get: () => hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        is_hidden,
    )


async def test_a_lost_hub_is_said_and_found_again(running: Running, browser: Browser) -> None:
    port = running.url.rpartition(":")[2]
    async with open_page(browser, expected="net::ERR_") as page:
        await page.goto(f"{running.url}/ui/agents")
        await expect(page.get_by_role("status")).to_have_text("live")
        running.hub.process.kill()
        running.hub.process.wait()
        await expect(page.get_by_role("status")).to_have_text("the hub does not answer")
        with program("hub", "--bare", "--port", port, cwd=running.folder) as hub:
            hub.wait_for("hub at")
            await expect(page.get_by_role("status")).to_have_text("live")
            await expect(page.get_by_role("link", name="shop-agent")).to_be_visible()


async def test_the_overview_names_what_waits_for_a_person(
    tmp_path: Path, retinue_home: Path, browser: Browser
) -> None:
    state = State(retinue_home)
    server = ImportTable(command=sys.executable, args=("-m", "tests.mcp.upstream.foreign_server", "plain"))
    write_import(state, "loud", server.model_copy(update={"folder": str(ROOT)}))
    write_import(state, "sad", ImportTable(command="/nowhere/to/be/found"))
    open_pins(Settings(), state).review("loud", [{"name": "shout", "description": "<i>Whispers\u202e.</i>"}])
    stored = retinue_home / "workflows"
    stored.mkdir(parents=True)
    (stored / "approve.yaml").write_text("name: approve\nsteps:\n  - {id: ask, wait_for: approval}\n")
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("2 agents")
        token = state.local_token()
        assert "result" in execute(url, "start_run", {"workflow": "approve"}, token)
        async with open_page(browser) as page:
            await sign_in(page, url, token)
            needs = page.locator("#needs")
            await expect(needs).to_contain_text("approve waits for an answer: approval")
            await expect(needs.locator("li", has_text="sad")).to_contain_text("unavailable")
            await expect(needs).to_contain_text("/nowhere/to/be/found")
            await expect(needs.locator("code")).to_have_text("retinue imports accept loud")
            await needs.locator("summary", has_text="shout").click()
            change = needs.locator("pre", has_text="Whispers")
            await expect(change).to_contain_text('-  "description": "<i>Whispers\\u202e.</i>"')
            await expect(change).to_contain_text('+  "description": "Shouts a text."')
            with program("imports", "accept", "loud", cwd=tmp_path) as command:
                await asyncio.to_thread(command.wait_for, "accepted: ")
            await expect(needs.locator("code")).to_have_count(0)


async def test_a_draft_is_checked_while_typing_saved_and_run(running: Running, browser: Browser) -> None:
    async with open_page(browser) as page:
        await sign_in(page, running.url, running.token)
        await page.goto(f"{running.url}/ui/workflows")
        await page.get_by_role("link", name="Write a workflow").click()
        checked = page.locator("#checked")
        await expect(checked).to_contain_text("my-workflow can run")
        text = page.get_by_label("YAML or JSON")
        await text.fill("name: mine\nsteps:\n  - {id: add, skil: plus}\n")
        await expect(checked).to_contain_text("Line 3: steps[0].skil: unknown key 'skil'")
        await checked.get_by_role("link", name="Line 3").click()
        selected = "() => document.getElementById('text').value.slice(...['selectionStart', 'selectionEnd']"
        assert "skil: plus" in await page.evaluate(
            f"{selected}.map(k => document.getElementById('text')[k]))"
        )
        await text.fill('name: mine\nsteps:\n  - {id: add, skill: plus, with: {a: "${{ input.n }}", b: 1}}\n')
        await expect(checked).to_contain_text("mine can run")
        await expect(checked.locator("svg")).to_contain_text("plus")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("status").last).to_contain_text("Stored as mine")
        await page.get_by_label("Input of a run").fill('{"n": 41}')
        await page.get_by_role("button", name="Run").click()
        await expect(page.locator("section", has_text="Output").locator("pre").first).to_have_text("42")
        await page.goto(f"{running.url}/ui/workflows/mine")
        await page.get_by_role("link", name="Change a copy").click()
        await expect(page.get_by_label("YAML or JSON")).to_have_value(re.compile('"skill": "plus"'))


async def test_a_draft_is_checked_without_scripts(running: Running, browser: Browser) -> None:
    async with open_page(browser, java_script_enabled=False) as page:
        await sign_in(page, running.url, running.token)
        await page.goto(f"{running.url}/ui/workflows/new/draft")
        await page.get_by_label("YAML or JSON").fill("name: mine\nsteps: []\n")
        await page.get_by_role("button", name="Check").click()
        await expect(page.locator("#checked")).to_contain_text("Line 2: steps: no steps")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#checked")).to_contain_text("Line 2: steps: no steps")


async def test_a_skill_is_entered_as_a_form_or_as_json_without_scripts(
    running: Running, browser: Browser
) -> None:
    async with open_page(browser, java_script_enabled=False) as page:
        await sign_in(page, running.url, running.token)
        await page.goto(f"{running.url}/ui/agents/shop-agent/skills/order")
        await page.get_by_label("name required").fill("tea")
        await page.get_by_role("button", name="As JSON").click()
        arguments = page.get_by_label("arguments")
        await expect(arguments).to_have_value(re.compile('{"item": {"name": "tea", "count": 1}'))
        await arguments.fill('{"item": {"name": "tea"')
        await page.get_by_role("button", name="Call").click()
        await expect(page.get_by_role("alert")).to_contain_text("this is not JSON")
        await arguments.fill('{"item": {"name": "tea", "count": 3}}')
        await page.get_by_role("button", name="Call").click()
        await expect(page.locator("section[aria-live] pre")).to_contain_text('"count": 3')
        await page.get_by_role("button", name="As a form").click()
        await expect(page.get_by_label("count")).to_have_value("3")


async def test_the_same_call_runs_from_a_shell_and_from_python(running: Running, browser: Browser) -> None:
    async with open_page(browser) as page:
        await sign_in(page, running.url, running.token)
        await page.goto(f"{running.url}/ui/agents/shop-agent/skills/order")
        await page.get_by_label("name required").fill('tea\'s "best" $HOME')
        await page.get_by_role("button", name="Call").click()
        examples = await page.locator("#same pre").all_text_contents()
    command, curl, python = examples
    for line in (command, curl):
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = await asyncio.to_thread(
            subprocess.run, line, shell=True, env=environment, capture_output=True, text=True, check=False
        )
        assert json.loads('"tea\'s \\"best\\" $HOME"') in re.sub(r'\\"', '"', done.stdout), done
    (running.folder / "mine.py").write_text(python)
    with program("serve", "mine.py", cwd=running.folder) as agent:
        agent.wait_for("published")
        reply = await asyncio.to_thread(execute, running.url, "ask", {}, running.token)
    assert "result" in reply, reply
    assert reply["result"]["ordered"]["name"] == 'tea\'s "best" $HOME'


async def test_an_agent_shows_its_versions_weights_and_where_it_is_from(
    running: Running, browser: Browser
) -> None:
    newer = SHOP.replace("1.2.0", "2.0.0").replace("Agent(", "Agent(deprecated='use market-agent', name=", 1)
    (running.folder / "newer.py").write_text(newer)
    with program("serve", "newer.py", "--weight", "20", cwd=running.folder) as agent:
        agent.wait_for("published")
        async with open_page(browser) as page:
            await sign_in(page, running.url, running.token)
            await page.goto(f"{running.url}/ui/agents/shop-agent")
            rows = page.locator("#versions tbody tr")
            await expect(rows).to_have_count(2)
            await expect(rows.filter(has_text="2.0.0")).to_contain_text("20 %")
            await expect(rows.filter(has_text="2.0.0")).to_contain_text("deprecated")
            await expect(rows.filter(has_text="1.2.0")).to_contain_text("100 %")
            await expect(page.locator("dl")).to_contain_text("registry home")
            await expect(page.get_by_role("link", name="order")).to_be_visible()


async def test_a_run_is_cancelled_resumed_refused_and_run_again_from_a_step(
    running: Running, browser: Browser
) -> None:
    arguments = {"workflow": "approve", "input": {"n": 4}}
    run = execute(running.url, "start_run", arguments, running.token)["result"]["run"]
    async with open_page(browser) as page:
        await sign_in(page, running.url, running.token)
        await page.goto(f"{running.url}/ui/runs/{run}")
        title = page.get_by_role("heading", level=1)
        await expect(page.get_by_role("button", name="Approve")).to_be_visible()
        await page.get_by_role("button", name="Cancel").click()
        await expect(title).to_contain_text("cancelled")
        await page.get_by_role("button", name="Resume").click()
        await expect(page.get_by_role("button", name="Approve")).to_be_visible()
        await page.get_by_role("button", name="Approve").click()
        await expect(page.locator("pre", has_text='"sum": 15')).to_be_visible()
        await expect(title).to_contain_text("done")
        row = page.locator("tr", has_text=re.compile("^first"))
        await row.locator("summary").click()
        await expect(row.locator("pre", has_text='"a": 4')).to_be_visible()
        await expect(row).to_contain_text("attempts")
        await row.locator("summary").click()
        await page.locator("tr", has_text=re.compile("^ask")).get_by_role("button", name="Rerun").click()
        await expect(page.get_by_text("Rerun of")).to_contain_text(run)
        await page.get_by_role("button", name="Refuse").click()
        await expect(title).to_contain_text("done")
        row = page.locator("tr", has_text=re.compile("^ask"))
        await row.locator("summary").click()
        await expect(row.locator("pre", has_text="false")).to_be_visible()
