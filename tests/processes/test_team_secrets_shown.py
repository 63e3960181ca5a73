"""A team whose programs print its secrets: nothing that is shown or kept has them, but their own file."""

from __future__ import annotations

from pathlib import Path
from urllib.request import Request, urlopen

import orjson

from tests.processes.commands import retinue, run_command
from tests.processes.running import program, wait_until
from tests.processes.secret_forms import forms_of

SECRET = "hunter2-of-the-leaky-team+/%&"

TEAM = """
name = "leaky"
version = "{version}"
[[agents]]
target = "agents/leaky/agent.py"
env = {{ KEY = "${{KEY}}" }}
[secrets]
KEY = "key of a service"
[[check.calls]]
agent = "leaky-agent"
skill = "{checked}"
"""

AGENT = """
import logging
import os
import sys

from retinue import Agent

KEY = os.environ.get("KEY", "")
print("the key is", KEY, os.environ)
print("the key is", {"key": KEY}, file=sys.stderr, flush=True)
if "VERSION" == "1.1.0" and KEY:
    raise SystemExit(f"cannot start with {KEY}")
agent = Agent("leaky-agent", version="VERSION")


@agent.skill(read_only=True)
async def tell() -> str:
    "Prints the key."
    print(KEY, flush=True)
    logging.getLogger("leaky").error("the key is %s", KEY)
    return "told"


@agent.skill()
async def raise_key() -> str:
    "Fails with the key."
    raise ValueError(f"the service refuses {KEY}")
"""


def pack(folder: Path, version: str, checked: str = "tell") -> str:
    files = {
        "team.toml": TEAM.format(version=version, checked=checked),
        "agents/leaky/agent.py": AGENT.replace("VERSION", version),
    }
    for path, text in files.items():
        place = folder / "leaky" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    retinue("lock", "leaky", cwd=folder)
    return retinue("pack", "leaky", cwd=folder)


def test_secrets_that_programs_print_are_hidden_wherever_something_is_shown(
    tmp_path: Path, retinue_home: Path
) -> None:
    first, ending, failing = (
        pack(tmp_path, "1.0.0"),
        pack(tmp_path, "1.1.0"),
        pack(tmp_path, "1.2.0", "raise_key"),
    )
    own = {"KEY": SECRET}
    shown: list[str] = []

    def note(*arguments: str, status: int = 0) -> str:
        done = run_command(*arguments, cwd=tmp_path, environment=own)
        assert done.returncode == status, (arguments, done.stderr)
        shown.append(f"{arguments}\n{done.stdout}\n{done.stderr}")
        return shown[-1]

    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        note("up", first, "--yes")
        note("call", "tell")
        assert run_command("call", "raise_key", cwd=tmp_path).returncode != 0
        assert "ended with code" in note("up", ending, "--yes", status=1)
        assert "the service refuses ***" in note("up", failing, "--yes", status=1)
        assert "the service refuses ***" in note("team", "leaky")
        note("team", "--json")
        note("diff", first, failing, "--json", status=1)
        for listing in ("agents", "imports", "history", "top"):
            note(listing, "--json")
        wait_until(lambda: "raise_key" in note("logs", "-n", "1000"), "the log has the call")
        note("logs", "--json", "-n", "1000")
        run_command("doctor", cwd=tmp_path)
        token = f"Bearer {(retinue_home / 'keys' / 'owner.token').read_text().strip()}"
        (trace,) = {
            row["trace_id"]
            for row in orjson.loads(retinue("call", "list_calls", '{"skill": "raise_key"}', cwd=tmp_path))[
                "calls"
            ]
            if row["caller"] != "team-check"
        }
        pages = ("calls", "agents", "agents/leaky-agent", "teams", "mesh", f"traces/{trace}")
        for path in ("/", *(f"/ui/{page}" for page in pages), "/metrics", "/health"):
            with urlopen(Request(f"{url}{path}", headers={"authorization": token})) as reply:
                shown.append(f"{path}\n{reply.read().decode()}")
        retinue("down", "leaky", cwd=tmp_path)
    shown.append(hub.output)
    for form in forms_of(SECRET.encode()):
        for text in shown:
            assert form.decode() not in text, text
        for file in retinue_home.rglob("*"):
            if file.is_file() and not file.match("teams/leaky/secrets-*.json"):
                assert form not in file.read_bytes(), file
    # they were printed, and are hidden
    assert any("the key is ***" in text for text in shown)
