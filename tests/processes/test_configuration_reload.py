"""SIGHUP: the settings are read anew, applied where that is possible, and told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.storage.state import State
from tests.processes.running import Program, descendants, execute, program, wait_until, write_agent


@pytest.fixture(autouse=True)
def hangups_count() -> Iterator[None]:
    """Under nohup, which programs respect, the signal would be ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def write_settings(folder: Path, text: str) -> None:
    (folder / "retinue.toml").write_text(text)


def reload(process: Program) -> str:
    """The line that a process prints after the signal."""
    known = len(process.lines)
    process.send(signal.SIGHUP)

    def said() -> list[str]:
        return [line for line in process.lines[known:] if line.startswith("settings ")]

    wait_until(lambda: bool(said()), "it tells what changed")
    return said()[0]


def test_changed_settings_are_in_force_at_once_or_named_for_the_next_start(
    tmp_path: Path, retinue_home: Path
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    write_settings(tmp_path, "")
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
        program("serve", str(agent), cwd=tmp_path) as served,
        program("worker", "--port", "0", cwd=tmp_path) as worker,
    ):
        url = hub.url_in("hub at")
        own = served.url_in("one-agent")
        served.wait_for("published")
        worker.wait_for("worker at")
        hub.wait_for("exposed")
        assert execute(url, "who")["result"] == "one"
        assert reload(hub) == "settings read again; nothing changed"
        hides = '[access.one-agent]\nreceive = ["local"]\n'
        write_settings(tmp_path, f"[runs]\nkeep = 9\n[limits]\nin_flight = 7\n{hides}")
        told = (
            "settings read again; now in force: access.one-agent.receive, limits.in_flight; "
            "at the next start: runs.keep"
        )
        for process in (hub, served, worker):
            assert reload(process) == told
        for place in (url, own):
            assert "error" in execute(place, "who"), "anonymous callers are not on the list"
            assert execute(place, "who", token=State(retinue_home).local_token())["result"] == "one"
        write_settings(tmp_path, "[limits]\nin_flight = 'many'\n")
        said = reload(hub)
        assert "limits.in_flight" in said
        assert said.endswith("the previous ones stay")
        assert "error" in execute(url, "who")
        write_settings(tmp_path, "[limits]\ncalls_per_s = 0.001\nburst = 1\n")
        assert "access.one-agent.receive" in reload(hub)
        assert "limits.calls_per_s" in reload(served)
        assert "result" in execute(own, "who")
        assert execute(own, "who")["error"]["data"]["type"] == "busy"
        assert served.end() == 0
        assert hub.end() == 0


def test_options_of_the_command_stay_above_the_file_when_it_is_read_again(tmp_path: Path) -> None:
    write_settings(tmp_path, "")
    other = tmp_path / "other-registry"
    with program("hub", "--bare", "--port", "0", "--registry", str(other), cwd=tmp_path) as hub:
        hub.wait_for("exposed")
        write_settings(tmp_path, 'registries = ["http://127.0.0.1:9"]\n')
        assert reload(hub) == "settings read again; nothing changed"


def test_access_chains_logs_refreshes_and_guards_change_while_a_hub_runs(
    tmp_path: Path, retinue_home: Path
) -> None:
    write_settings(tmp_path, "")
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("exposed")
        assert "result" in execute(url, "list_agents")
        write_settings(
            tmp_path,
            "[auth]\nanonymous = false\n[trace]\nmax_depth = 2\n"
            "[logs]\nfiles = 2\n[directory]\nrefresh_s = 30\n",
        )
        assert reload(hub) == (
            "settings read again; now in force: auth.anonymous, directory.refresh_s, logs.files, "
            "trace.max_depth"
        )
        assert execute(url, "list_agents")["error"]["data"]["type"] == "not_authenticated"
        assert "result" in execute(url, "list_agents", token=State(retinue_home).local_token())
        card = {"query": "pay with 4111 1111 1111 1111"}
        guard = '[guards.cards]\nuse = "sensitive"\narguments = "deny"\n'
        write_settings(tmp_path, guard)
        assert "auth.anonymous" in reload(hub)
        assert "result" in execute(url, "list_agents")
        denied = execute(url, "find_skills", card)["error"]
        assert denied["data"]["policies"] == ["guards.cards"]
        write_settings(tmp_path, guard.replace("sensitive", "sensitiv"))
        assert "guards.cards.use" in reload(hub)
        assert execute(url, "find_skills", card)["error"] == denied
        write_settings(tmp_path, "")
        assert "guards.cards" in reload(hub)
        assert "result" in execute(url, "find_skills", card)


def test_agents_that_the_settings_no_longer_name_are_stopped_and_new_ones_started(tmp_path: Path) -> None:
    one, two, three = (
        write_agent(tmp_path, f"{name}-agent", "1.0.0", name, name) for name in ("one", "two", "three")
    )
    table = "[[agents]]\ntarget = '{}'\n"
    write_settings(tmp_path, table.format(one) + table.format(two))
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("exposed")
        assert [execute(url, name)["result"] for name in ("one", "two")] == ["one", "two"]
        kept = descendants(hub.process.pid)
        write_settings(tmp_path, table.format(two) + table.format(three))
        assert reload(hub) == "settings read again; now in force: agents"
        hub.wait_for("three-agent at")
        assert execute(url, "three")["result"] == "three"
        assert execute(url, "two")["result"] == "two"
        assert "error" in execute(url, "one")
        assert len(kept - descendants(hub.process.pid)) == 1, "one ended, the other was not started again"
        assert hub.end() == 0
