"""Makes the pictures of the dashboard in ``docs/images/dashboard``: every page, light and dark.

python scripts/dashboard_pictures.py [FOLDER]    needs Chromium (scripts/services) and the group test

The script starts a hub and agents with a state folder of their own, makes calls and runs, and ends them.
Chromium encodes the pictures as WebP. With FOLDER it writes PNG files there instead.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "dashboard"
SIZE = (1280, 800)
START_S = 30.0
MAX_BYTES = 1_500_000
"""All pictures together."""

AGENT = """
import asyncio
from typing import Literal

from retinue import Agent, Context

agent = Agent("{name}", version="{version}", description="{description}")

{skills}
"""
AGENTS: Mapping[str, tuple[str, str, str]] = {
    "ledger-agent": (
        "2.1.0",
        "Books expenses and tells what is left of a budget",
        '''
@agent.skill(expose=True)
async def check_budget(amount: float, account: Literal["travel", "office", "training"] = "office") -> dict:
    """Tells whether an account has enough left for an amount."""
    await asyncio.sleep(0.04)
    return {"account": account, "left": 1200 - amount, "enough": amount <= 1200}


@agent.skill(expose=True)
async def book_expense(amount: float, purpose: str, receipts: list[str] = []) -> dict:
    """Books an expense on its account."""
    await asyncio.sleep(0.06)
    return {"booked": amount, "purpose": purpose, "receipts": len(receipts)}
''',
    ),
    "rates-agent": (
        "1.4.2",
        "Converts amounts between currencies",
        '''
@agent.skill(expose=True)
async def convert_amount(amount: float, to: str = "EUR") -> dict:
    """Converts an amount to another currency."""
    await asyncio.sleep(0.02)
    if to == "XXX":
        raise ValueError("no such currency: XXX")
    return {"amount": round(amount * 0.92, 2), "currency": to}
''',
    ),
    "mail-agent": (
        "0.9.0",
        "Writes to people and reads what they answer",
        '''
@agent.skill(expose=True)
async def notify_person(name: str, text: str, ctx: Context) -> dict:
    """Writes a message to a person, with the amount in their currency."""
    found = await ctx.call("convert_amount", {"amount": 80.0})
    return {"to": name, "said": text, "amount": found}
''',
    ),
    "archive-agent": (
        "1.0.0",
        "Keeps receipts",
        '''
@agent.skill(expose=True)
async def keep_receipt(number: str) -> bool:
    """Keeps a receipt for ten years."""
    return True
''',
    ),
}
DEAD = "archive-agent"
"""The agent that does not answer in the pictures."""

WORKFLOW = """\
name: expense
description: Check, convert and book an expense after an approval
input:
  type: object
  properties:
    amount: {type: number, description: The amount in US dollars}
    purpose: {type: string}
  required: [amount, purpose]
steps:
  - id: look
    parallel: {mode: all}
    steps:
      - {id: budget, skill: check_budget, with: {amount: "${{ input.amount }}"}}
      - {id: rate, skill: convert_amount, with: {amount: "${{ input.amount }}"}}
  - {id: approval, wait_for: {topic: approval, message: May this expense be booked?}, timeout: 1h}
  - {id: book, skill: book_expense, with: {amount: "${{ input.amount }}", purpose: "${{ input.purpose }}"}}
  - {id: tell, skill: notify_person, with: {name: Ada, text: It is booked}}
output: {booked: "${{ steps.book.output }}"}
"""
DRAFT = WORKFLOW.replace("name: expense", "name: expense-2").replace(
    "skill: book_expense", "skil: book_expense"
)


@contextmanager
def start(*arguments: str, folder: Path, says: str, is_killed: bool = False) -> Iterator[str]:
    """A ``retinue`` command that runs while inside; gives the line with ``says``.

    One that ``is_killed`` cannot withdraw its card.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", *arguments],
        cwd=folder,
        env={**os.environ, "RETINUE_HOME": str(folder / "state"), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if says in line:
                break
        else:
            raise SystemExit("".join(lines))
        yield lines[-1]
    finally:
        process.kill() if is_killed else process.terminate()
        process.communicate(timeout=START_S)


def call(url: str, token: str, skill: str, arguments: Mapping[str, Any]) -> Any:
    """The result of a call, or its error."""
    body = json.dumps({"jsonrpc": "2.0", "method": skill, "params": arguments, "id": "1"}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/execute", body, headers)) as reply:
        found = json.load(reply)
    return found.get("result", found.get("error"))


def fill(url: str, token: str) -> tuple[str, str]:
    """Make calls and two runs; gives the ids of the one that waits and of the one that is done."""
    for number in range(25):
        call(url, token, "check_budget", {"amount": 40.0 * number})
        call(url, token, "convert_amount", {"amount": 12.5, "to": "XXX" if number % 9 == 4 else "EUR"})
        call(url, token, "notify_person", {"name": "Ada", "text": "Your expense waits"})
    runs = [
        call(
            url, token, "start_run", {"workflow": "expense", "input": {"amount": amount, "purpose": purpose}}
        )
        for amount, purpose in ((80.0, "Train to Bern"), (420.0, "A chair"))
    ]
    waiting, done = (str(run["run"]) for run in runs)
    call(url, token, "keep_receipt", {"number": "R-1"})
    wait_for(lambda: has_status(call(url, token, "show_run", {"run": done}), "waiting"))
    call(url, token, "signal_run", {"run": done, "topic": "approval", "value": True})
    wait_for(lambda: call(url, token, "show_run", {"run": done})["status"] == "done")
    wait_for(lambda: has_status(call(url, token, "show_run", {"run": waiting}), "waiting"))
    return waiting, done


def has_status(run: Mapping[str, Any], status: str) -> bool:
    return any(step.get("status") == status for step in run["steps"])


def wait_for(condition: Any) -> None:
    """Return when the condition holds; raises SystemExit after `START_S`."""
    end = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the mesh did not come to what the pictures show")
        time.sleep(0.1)


def list_pages(url: str, token: str, waiting: str, done: str) -> dict[str, str]:
    """The path of each picture."""
    trace = call(url, token, "show_run", {"run": done})["trace"]
    return {
        "overview": "/",
        "agents": "/ui/agents",
        "agent": "/ui/agents/ledger-agent",
        "skill": "/ui/agents/ledger-agent/skills/book_expense",
        "calls": "/ui/calls",
        "trace": f"/ui/traces/{trace}",
        "runs": "/ui/runs",
        "run": f"/ui/runs/{waiting}",
        "run-done": f"/ui/runs/{done}",
        "workflows": "/ui/workflows",
        "workflow": "/ui/workflows/expense",
        "draft": "/ui/workflows/new/draft",
        "mesh": "/ui/mesh",
    }


def prepare(page: Page, name: str) -> None:
    """Bring a page into the state that its picture shows."""
    if name == "skill":
        page.get_by_label("amount required").fill("42.5")
        page.get_by_label("purpose required").fill("Train to Bern")
        page.get_by_role("button", name="Call").click()
        page.locator("section[aria-live]").wait_for()
    elif name == "draft":
        page.get_by_label("YAML or JSON").fill(DRAFT)
        page.get_by_text("unknown key").first.wait_for()


def take(
    browser: Browser, url: str, token: str, pages: Mapping[str, str], folder: Path, *, as_png: bool
) -> int:
    """Write the pictures of all pages in both schemes; gives their size in bytes."""
    total = 0
    for scheme in ("light", "dark"):
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": SIZE[0], "height": SIZE[1]}, device_scale_factor=1
        )
        page, encoder = context.new_page(), context.new_page()
        page.goto(f"{url}/ui/sign-in")
        page.fill("#token", token)
        page.get_by_role("button", name="Sign in").click()
        for name, path in pages.items():
            page.goto(f"{url}{path}")
            prepare(page, name)
            content = page.screenshot()
            if not as_png:
                content = encode(encoder, content)
            (folder / f"{name}-{scheme}.{'png' if as_png else 'webp'}").write_bytes(content)
            total += len(content)
        context.close()
    return total


def encode(page: Page, png: bytes) -> bytes:
    """A PNG picture as WebP."""
    made = page.evaluate(
        """async (png) => {
            const picture = new Image();
            picture.src = png;
            await picture.decode();
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [picture.width, picture.height];
            canvas.getContext("2d").drawImage(picture, 0, 0);
            return canvas.toDataURL("image/webp", 0.85);
        }""",
        f"data:image/png;base64,{base64.b64encode(png).decode()}",
    )
    return base64.b64decode(str(made).partition(",")[2])


def main() -> int:
    """1 if the pictures are larger than `MAX_BYTES`."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed; run scripts/services")
    as_png = len(sys.argv) > 1
    target = Path(sys.argv[1]).resolve() if as_png else TARGET
    target.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "state" / "workflows").mkdir(parents=True)
        (folder / "state" / "workflows" / "expense.yaml").write_text(WORKFLOW)
        line = stack.enter_context(start("hub", "--bare", "--port", "0", folder=folder, says="hub at"))
        url = re.findall(r"http://[0-9.]+:\d+", line)[0]
        for name, (version, description, skills) in AGENTS.items():
            file = folder / f"{name}.py"
            text = AGENT.format(name=name, version=version, description=description, skills=skills)
            file.write_text(text)
            if name == DEAD:
                with start("serve", str(file), folder=folder, says="published", is_killed=True):
                    pass
            else:
                stack.enter_context(start("serve", str(file), folder=folder, says="published"))
        token = (folder / "state" / "keys" / "local.token").read_text().strip()
        waiting, done = fill(url, token)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        stack.callback(browser.close)
        pages = list_pages(url, token, waiting, done)
        size = take(browser, url, token, pages, target, as_png=as_png)
    print(f"{2 * len(pages)} pictures, {size:,} bytes")
    return int(not as_png and size > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main())
