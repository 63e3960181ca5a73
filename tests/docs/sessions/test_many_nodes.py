"""The page on many nodes: its commands are typed, each on the machine where the page types it.

A machine is a state folder and an address of this one's loopback. What they share is a real registry and,
in place of the page's Postgres, one SQLite file (``tests/crash/test_machines.py`` has the Postgres).
"""

from __future__ import annotations

import signal
from pathlib import Path

import orjson
import pytest

from tests.docs.pages import ROOT, list_sections
from tests.docs.sessions.test_guides import list_blocks
from tests.docs.shell import Shell
from tests.services import docker_registry

PAGE = "guides/many-nodes.md"
HUB = "http://10.0.0.5:9000"


def test_a_run_outlives_the_hub_of_several_machines_as_the_page_says(
    shell: Shell, fresh_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (section,) = (one for one in list_sections(ROOT / "docs" / PAGE) if one.title == "Several machines")
    (hub, *new_tokens), (worker,), (serve,), (run, kill, follow) = section.commands()
    monkeypatch.setenv("RETINUE_RUNS__LEASE_S", "2")

    def at(machine: str) -> None:
        monkeypatch.setenv("RETINUE_HOME", str(tmp_path / machine))

    with docker_registry(tmp_path) as url:
        shell.map_address("postgresql://retinue:secret@db.example/retinue", f"sqlite:///{tmp_path}/shared.db")
        shell.map_address("http://registry.example:5000", url)
        for name in ("retinue.toml", "chapters.py", "book.yaml"):
            (text,) = (block.text for block in list_blocks(PAGE) if block.intro.endswith(f"as `{name}`:"))
            (fresh_folder / name).write_text(shell.to_real(text), encoding="utf-8")
        for machine in ("5", "7"):
            shell.addresses[f"--host 10.0.0.{machine}"] = f"--host 127.0.0.{machine}"
        at("first")
        shell.type(hub)
        (running,) = shell.list_started("retinue hub")
        shell.map_address(HUB, running.url_in("hub at"))
        for_worker, for_agents = (shell.type(new).strip() for new in new_tokens)
        at("second")
        shell.addresses["rtnj_…"] = for_worker
        shell.type(worker)
        at("third")
        shell.addresses["rtnj_…"] = for_agents
        shell.type(serve)
        at("second")
        shell.type(run)
        (watching,) = shell.list_started("retinue run")
        watching.wait_for(" s")
        at("first")
        shell.type(kill)
        at("second")
        assert watching.wait() != 0
        output = orjson.loads(shell.type(follow))
        assert output == {"chapters": [f"All about {title}" for title in ("bread", "salt", "olives")]}
        (working,) = shell.list_started("retinue worker")
        working.wait_for("runs taken over")
        (serving,) = shell.list_started("retinue serve")
        assert all(one.end(signal.SIGTERM) == 0 for one in (working, serving))
