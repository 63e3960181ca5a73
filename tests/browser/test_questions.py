"""A person answers the question of a run in a real browser."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.browser.pages import find_barriers, open_page, read_axe
from tests.browser.shop import Running, sign_in
from tests.processes.running import execute

SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean", "description": "May it go on?"},
        "comment": {"type": "string"},
        "urgent": {"type": "boolean"},
    },
    "required": ["ok"],
}


@pytest.mark.parametrize("schema", ["one boolean", "several"])
async def test_a_question_with_a_boolean_is_answered_by_a_button(
    running: Running, browser: Browser, schema: str
) -> None:
    axe = read_axe()
    properties = {"ok": SCHEMA["properties"]["ok"]} if schema == "one boolean" else SCHEMA["properties"]  # type: ignore[index]
    wait = {"topic": "go", "message": "Send it?", "schema": {**SCHEMA, "properties": properties}}
    workflow = {"name": "send", "steps": [{"id": "ask", "wait_for": wait}]}
    run = execute(running.url, "start_run", {"workflow": workflow, "input": {}}, running.token)["result"][
        "run"
    ]
    async with open_page(browser, viewport={"width": 390, "height": 800}) as page:
        await sign_in(page, running.url, running.token)
        await page.goto(f"{running.url}/ui/runs/{run}")
        await expect(page.get_by_role("heading", name="Send it?")).to_be_visible()
        assert await find_barriers(page, axe) == []
        if schema == "one boolean":
            await page.get_by_role("button", name="Refuse").click()
            answer = '"ok": false'
        else:
            await page.get_by_label("comment").fill("fine")
            await page.get_by_label("comment").press("Enter")  # decides nothing
            await page.get_by_role("group", name="urgent").get_by_label("No", exact=True).check()
            await page.get_by_role("button", name="Answer").click()
            await expect(page.get_by_role("alert")).to_contain_text("missing required field 'ok'")
            assert await find_barriers(page, axe) == []
            await page.get_by_role("group", name="ok required").get_by_label("Yes").check()
            await page.get_by_role("button", name="Answer").click()
            answer = '"comment": "fine"'
        await expect(page.get_by_role("heading", level=1)).to_contain_text("done")
        await expect(page.locator("section pre", has_text=answer).first).to_be_visible()
