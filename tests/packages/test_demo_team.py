"""The team of the demo, run by its digest from the hub of a neighbour, in an empty state."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from scripts.environment import find_uv
from scripts.get_uv import UvNotFoundError
from scripts.package_settings import make_uv_environment, read_settings
from tests.ports import reserve_port
from tests.processes.commands import retinue, run_command
from tests.processes.running import program, run_apart
from tests.time_bounds import Stopwatch

WITH_CACHES_S = 15.0


@pytest.mark.timeout(540)
def test_the_demos_team_runs_by_its_digest_from_the_hub_of_a_neighbour(
    tmp_path: Path, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        uv = find_uv(settings := read_settings())
    except UvNotFoundError as error:
        pytest.skip(f"NOT TESTED, because there is no uv: {error}")
    for name, value in make_uv_environment(settings, {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(uv).parent}{os.pathsep}{os.environ['PATH']}")
    retinue("demo", "--team", "testwriter", cwd=tmp_path)
    retinue("lock", "testwriter", cwd=tmp_path)  # so the packages are in the cache of uv
    digest = retinue("pack", "testwriter", cwd=tmp_path)
    own = {"RETINUE_HOME": str(tmp_path / "own")}
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as neighbour:
        url = neighbour.url_in("hub at")
        retinue("keys", "trust", "neighbour", f"{url}/.well-known/jwks.json", cwd=tmp_path, environment=own)
        clock = Stopwatch()
        reference = f"oci://{url.removeprefix('http://')}/teams/testwriter@{digest}"
        try:
            port = str(reserve_port())
            done = run_apart("up", reference, "--yes", "--port", port, cwd=tmp_path, environment=own)
            clock.check(WITH_CACHES_S)
            assert done.returncode == 0, done.stderr
            assert "testwriter 1.0.0 serves" in done.stdout
            started_at = f"http://127.0.0.1:{port}"
            assert started_at in retinue("status", cwd=tmp_path, environment=own)
            other = run_command("up", reference, "--yes", "--port", "1", cwd=tmp_path, environment=own)
            assert f"--port: a hub already runs at {started_at}" in other.stderr
            options = ("write-tests", '{"requirements": "textwrap"}', "--json")
            output = orjson.loads(retinue("run", *options, cwd=tmp_path, environment=own))
            assert (output["module"], output["failed"]) == ("textwrap", 0)

            # a withdrawn key: what runs goes on and says so, and up refuses
            retinue("keys", "forget", "neighbour", cwd=tmp_path, environment=own)
            shown = retinue("team", "testwriter", cwd=tmp_path, environment=own)
            assert "it runs on, and retinue up refuses it" in shown
            refused = run_command("up", reference, "--yes", cwd=tmp_path, environment=own)
            assert (refused.returncode, "keys trust" in refused.stderr) == (7, True)
            plan = ("create_plan", '{"requirements": "textwrap"}', "--json")
            assert "textwrap" in retinue("call", *plan, cwd=tmp_path, environment=own)
        finally:
            retinue("stop", cwd=tmp_path, environment=own)
