"""A team with locked packages as real processes: an agent with a PyPI requirement, a server of npm.

The digest with its packages is mirrored to a docker-registry, and runs from there without an index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from retinue.runtime.teams.environments import Environments
from scripts.environment import find_uv
from scripts.get_uv import UvNotFoundError
from scripts.package_settings import make_uv_environment, read_settings
from tests.processes.commands import retinue
from tests.processes.running import program
from tests.services import docker_registry

NPM_SERVER = "@modelcontextprotocol/server-filesystem@2026.8.31"
CLOSED = "http://127.0.0.1:1"
NOWHERE = {
    **dict.fromkeys(("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"), f"{CLOSED}/simple"),
    **dict.fromkeys(
        ("UV_FIND_LINKS", "PIP_FIND_LINKS", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_CACHE_DIR"), ""
    ),
    **dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "npm_config_registry"), CLOSED
    ),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1"),
}
"""No index and no cache is reached with these variables and an empty HOME."""

REQUIREMENT = "semver==3.0.2"
"""Another version than the one that Retinue has, so that the agent shows where it found it."""

TEAM = f"""
name = "packed"
version = "1.0.0"

[[agents]]
target = "agents/versions/agent.py"

[imports.files]
npm = "{NPM_SERVER}"
args = ["${{DATA}}"]

[[check.calls]]
agent = "versions"
skill = "read_version"
result = "3.0.2"
"""

AGENT = """
from importlib.metadata import version

from retinue import Agent

agent = Agent("versions", version="1.0.0", description="Tells versions of packages.")


@agent.skill()
def read_version() -> str:
    \"\"\"The version of semver that this agent has.\"\"\"
    import semver

    return version(semver.__name__)
"""


@pytest.mark.timeout(540)
@pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("npm", "node")), reason="NOT TESTED: no npm or node"
)
def test_up_without_an_index_installs_what_the_lock_names_from_the_digest(
    tmp_path: Path, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        uv = find_uv(settings := read_settings())
    except UvNotFoundError as error:
        pytest.skip(f"NOT TESTED, because there is no uv: {error}")
    for name, value in make_uv_environment(settings, {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(uv).parent}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "packed"
    agents = folder / "agents" / "versions"
    agents.mkdir(parents=True)
    (folder / "team.toml").write_text(TEAM)
    (agents / "agent.py").write_text(AGENT)
    (agents / "pyproject.toml").write_text(
        f'[project]\nname = "versions"\nversion = "1.0.0"\ndependencies = ["retinue", "{REQUIREMENT}"]\n'
    )
    retinue("lock", "packed", cwd=tmp_path)
    # the lock has installed the packages from the index; from here on there is none
    digest = retinue("pack", "packed", "--vendor", cwd=tmp_path)
    environments = retinue_home / "team-environments"
    shutil.rmtree(environments)
    (tmp_path / "empty").mkdir()
    offline = {**NOWHERE, "HOME": str(tmp_path / "empty")}
    (tmp_path / "registry").mkdir()
    with (
        docker_registry(tmp_path / "registry") as registry,
        program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub,
    ):
        hub.wait_for("hub at")
        mirrored = retinue("mirror", str(retinue_home / "registry"), registry, cwd=tmp_path)
        assert "teams/packed:1.0.0" in mirrored
        reference = f"oci://{registry.removeprefix('http://')}/teams/packed@{digest}"
        serves = retinue("up", reference, "--yes", cwd=tmp_path, environment=offline)
        assert "packed 1.0.0 serves" in serves
        assert len(list(environments.glob("venvs/*/bin/python"))) == 1
        modules = next(environments.glob("npm/*/node_modules"))
        assert (modules / "@modelcontextprotocol" / "server-filesystem").is_dir()
        listed = retinue("call", "list_allowed_directories", "--json", cwd=tmp_path)
        assert str(retinue_home / "teams" / "packed" / "data") in listed
        assert orjson.loads(retinue("call", "read_version", "--json", cwd=tmp_path)) == "3.0.2"
        assert "Traceback" not in hub.output
    check_pip(retinue_home, digest, tmp_path, offline)


def check_pip(home: Path, digest: str, folder: Path, offline: dict[str, str]) -> None:
    """Where uv is missing, pip makes the same environment of the packages of the digest."""
    files = home / "teams" / "packed" / digest.removeprefix("sha256:") / "files"
    lock = (files / "agents" / "versions" / "pylock.toml").read_bytes()
    variables = {**offline, "PATH": "/usr/bin:/bin"}
    assert shutil.which("uv", path=variables["PATH"]) is None
    python = Environments(folder / "by-pip", variables, vendored=files).make_python(lock, is_agent=True)
    source = "import retinue, semver; from importlib.metadata import version; print(version('semver'))"
    done = subprocess.run([str(python), "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3.0.2"
