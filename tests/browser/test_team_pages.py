"""The page of teams in a browser: several teams, long names, eight imports and a hundred tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from playwright.async_api import Browser

from retinue.runtime.commands.teams.commands import open_teams
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.team.package import Team
from tests.browser.pages import find_barriers, open_page, read_axe
from tests.browser.shop import Running, sign_in
from tests.browser.test_every_page import BROKEN_WORDS
from tests.team.conftest import WriteTeam
from tests.team.conftest import write_team as write_team

LONG = "department-of-customer-correspondence-and-complaints-in-writing"
TOOLS = 13
"""Tools of each of the eight imports."""


def list_imports(version: str) -> dict[str, Any]:
    """Eight imports of the lock, with about a hundred tools together."""

    def describe(number: int, tool: int) -> dict[str, Any]:
        fields = {f"field_{n}": {"type": "string", "description": "A text. " * 8} for n in range(3)}
        schema = {"type": "object", "properties": fields, "required": ["field_0", f"since_{version}"]}
        name = f"read_everything_about_customers_{number}_{tool}"
        return {"id": name, "description": f"Reads {tool}. " * 9, "input_schema": schema}

    return {
        f"archive-of-letters-and-parcels-{number}": {
            "lock": f"locks/archive-of-letters-and-parcels-{number}/package-lock.json",
            "packages": 122,
            "tools": [describe(number, tool) for tool in range(TOOLS)],
        }
        for number in range(8)
    }


def write_large(write_team: WriteTeam, version: str, calls: str) -> Path:
    imports = list_imports(version)
    package = "@organisation-with-a-long-name/server-for-letters-and-parcels"
    more = "".join(f'[imports.{name}]\nnpm = "{package}@{version}"\n' for name in imports)
    more += f'[access.{LONG}]\nsend = ["{calls}"]\n'
    more += '[secrets]\nKEY_OF_THE_ARCHIVE_OF_LETTERS_AND_PARCELS = "key of the archive"\n'
    folder = write_team(version, name=LONG, more=more)
    for name in imports:
        (folder / "locks" / name).mkdir(parents=True)
        lock = {"packages": {"": {}, f"node_modules/{package}": {"version": version, "license": "MIT"}}}
        (folder / "locks" / name / "package-lock.json").write_bytes(orjson.dumps(lock))
        (folder / "locks" / name / "package.json").write_bytes(
            orjson.dumps({"dependencies": {package: version}})
        )
    return write_team(version, name=LONG, more=more, imports=imports, agent=LONG)


async def test_digests_and_their_differences_are_read_at_320_and_1280_pixels(
    running: Running, browser: Browser, retinue_home: Path, write_team: WriteTeam
) -> None:
    async with open_teams(Settings(), State(retinue_home)) as commands:

        async def pack(folder: Path) -> Team:
            return (await commands.pack(folder, registry=None, output=None)).team

        teams = [await pack(write_team("1.0.0", name=name)) for name in ("words", "news", "letters")]
        old = await pack(write_large(write_team, "1.0.0", "a/b"))
        new = await pack(write_large(write_team, "1.1.0-rc.1.of.the.next.release", "*"))
    owner, axe = (retinue_home / "keys" / "owner.token").read_text().strip(), read_axe()
    compared = f"/ui/teams?from={old.digest}&to={new.digest}"
    for width, scheme in ((1280, "light"), (320, "dark")):
        async with open_page(browser, color_scheme=scheme, viewport={"width": width, "height": 900}) as page:
            await sign_in(page, running.url, owner)
            for path in ("/ui/teams", compared):
                await page.goto(f"{running.url}{path}")
                text = await page.inner_text("main")
                assert all(team.digest in text for team in (*teams, old, new))
                assert await find_barriers(page, axe) == [], path
                assert await page.evaluate(BROKEN_WORDS) == [], f"{path} at {width}"
                wide = await page.evaluate("() => document.documentElement.scrollWidth")
                assert wide <= width, f"{path} is {wide} pixels wide at {width}"
            assert "The second can do more." in text
            assert "read_everything_about_customers_7_12" in text
