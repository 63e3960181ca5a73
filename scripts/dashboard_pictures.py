"""Makes the pictures of the dashboard in ``docs/images/dashboard``: wide and narrow, light and dark.

python -m scripts.dashboard_pictures [FOLDER]    needs Chromium (scripts/services), npm and the group test

The script starts a hub with a state folder of its own, eight imported MCP servers, agents, 300 runs and
schedules (``scripts/picture_mesh``), and ends them. Chromium encodes the pictures as WebP. With FOLDER it
writes every page there as PNG, as a whole, to be looked at.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from scripts.picture_mesh.agents import DRAFT
from scripts.picture_mesh.filling import Mesh, Shown, fill, open_mesh

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "dashboard"
WIDTHS = {"": (1280, 800), "-narrow": (390, 844)}
IN_DOCS_NARROW = ("overview", "agents", "calls", "run")
"""Pages whose narrow pictures are kept in the documentation, too."""

NOT_IN_DOCS = (
    "agent-import",
    "skill-image",
    "search",
    "calls-failed",
    "run-failed",
    "run-wide",
    "run-image",
    "failure",
)
MAX_BYTES = 1_500_000
"""All pictures of the documentation together."""


def list_pages(mesh: Mesh, shown: Shown) -> dict[str, str]:
    """The path of each picture."""
    trace = mesh.call("show_run", {"run": shown.done})["trace"]
    return {
        "overview": "/",
        "agents": "/ui/agents",
        "agent": "/ui/agents/ledger-agent",
        "agent-import": "/ui/agents/github",
        "search": "/ui/agents?q=comment+on+a+pull+request",
        "skill": "/ui/agents/ledger-agent/skills/book_expense",
        "skill-image": "/ui/agents/charts/skills/generate_bar_chart",
        "calls": "/ui/calls",
        "calls-failed": "/ui/calls?failed=1",
        "trace": f"/ui/traces/{trace}",
        "runs": "/ui/runs",
        "run": f"/ui/runs/{shown.waiting}",
        "run-done": f"/ui/runs/{shown.done}",
        "run-failed": f"/ui/runs/{shown.failed}",
        "run-wide": f"/ui/runs/{shown.wide}?step=each",
        "run-image": f"/ui/runs/{shown.image}",
        "workflows": "/ui/workflows",
        "workflow": "/ui/workflows/expense",
        "draft": "/ui/workflows/new/draft",
        "mesh": "/ui/mesh",
        "failure": "/ui/runs/nosuch",
    }


def prepare(page: Page, name: str) -> None:
    """Bring a page into the state that its picture shows."""
    if name == "skill":
        page.get_by_label("amount required").fill("42.5")
        page.get_by_label("purpose required").fill("Train to Bern")
        page.get_by_role("button", name="Call").click()
        page.locator("section[aria-live]").wait_for()
    elif name == "skill-image":
        page.get_by_label("title required").fill("Orders a day")
        page.get_by_label("values required").fill("4\n9\n7\n12")
        page.get_by_role("button", name="Call").click()
        page.locator("section[aria-live] img").wait_for()
    elif name == "draft":
        page.get_by_label("YAML or JSON").fill(DRAFT)
        page.get_by_text("unknown key").first.wait_for()


def take(
    browser: Browser, mesh: Mesh, pages: Mapping[str, str], *, whole: bool
) -> Iterator[tuple[str, bytes]]:
    """The name and PNG of each picture, both widths in both schemes; ``whole`` pages or their beginning."""
    for width, size in WIDTHS.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(
                color_scheme=scheme,
                viewport={"width": size[0], "height": size[1]},
                device_scale_factor=1,
            )
            page = context.new_page()
            page.goto(f"{mesh.url}/ui/sign-in")
            page.fill("#token", mesh.token)
            page.get_by_role("button", name="Sign in").click()
            for name, path in pages.items():
                page.goto(f"{mesh.url}{path}")
                prepare(page, name)
                yield f"{name}{width}-{scheme}", page.screenshot(full_page=whole)
            context.close()


def is_in_docs(name: str) -> bool:
    page = name.rpartition("-")[0]
    return (
        page.removesuffix("-narrow") in IN_DOCS_NARROW
        if page.endswith("-narrow")
        else page not in NOT_IN_DOCS
    )


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
    is_review = len(sys.argv) > 1
    target = Path(sys.argv[1]).resolve() if is_review else TARGET
    target.mkdir(parents=True, exist_ok=True)
    sizes = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mesh = stack.enter_context(open_mesh(folder))
        shown = fill(mesh, folder)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        stack.callback(browser.close)
        encoder = browser.new_page()
        for name, png in take(browser, mesh, list_pages(mesh, shown), whole=is_review):
            if is_review:
                (target / f"{name}.png").write_bytes(png)
            elif is_in_docs(name):
                png = encode(encoder, png)
                (target / f"{name}.webp").write_bytes(png)
            else:
                continue
            sizes.append(len(png))
    print(f"{len(sizes)} pictures, {sum(sizes):,} bytes")
    return int(not is_review and sum(sizes) > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main())
