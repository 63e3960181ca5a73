"""Fixtures of the tests in a browser: a running mesh and Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.browser.pages import open_browser
from tests.browser.shop import SHOP, WORKFLOW, Running
from tests.processes.running import program


@pytest.fixture
def running(tmp_path: Path, retinue_home: Path) -> Iterator[Running]:
    (tmp_path / "shop.py").write_text(SHOP)
    stored = retinue_home / "workflows"
    stored.mkdir(parents=True)
    (stored / "approve.yaml").write_text(WORKFLOW)
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("0 agents")
        with program("serve", "shop.py", cwd=tmp_path) as agent:
            agent.wait_for("published")
            yield Running(
                tmp_path, url, hub, agent, (retinue_home / "keys" / "local.token").read_text().strip()
            )


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser
