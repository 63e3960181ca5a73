"""``retinue demo --team``: writes the three agents of the demo as the folder of a team.

The folder holds the source of ``retinue_testwriter``, so its digest has all code of the agents, and the
dependencies of this distribution, which ``retinue lock`` locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path

from retinue.core.errors import InvalidSettingError
from retinue.storage.files import storage_errors

_DISTRIBUTION = "retinue-testwriter"
_PACKAGE = "retinue_testwriter"
_AGENTS = ("planner", "builder", "tester")
_HOME = "agents/testwriter"

WORKFLOW = "write-tests"
"""The name of the workflow in the team; that of the demo belongs to an installed distribution."""

_DEFINITION = """# The team of retinue demo: three agents that write tests. See: retinue docs teams
name = "testwriter"
version = "1.0.0"
description = "Writes property-based tests for a Python module."

{agents}
# What must succeed before the team serves.
[[check.calls]]
agent = "plan-agent"
skill = "create_plan"
arguments = {{ requirements = "textwrap" }}
"""


def write_team_folder(folder: Path) -> list[str]:
    """Write the folder of the team, and give the paths of its files.

    Raises InvalidSettingError for a folder that exists.
    """
    source = resources.files(_PACKAGE)
    workflow = source.joinpath("workflows", "plan-build-test.yaml").read_text("utf-8")
    targets = [f"{_HOME}/{name}.py" for name in _AGENTS]
    texts = {
        "team.toml": _DEFINITION.format(agents="".join(f'[[agents]]\ntarget = "{t}"\n\n' for t in targets)),
        f"{_HOME}/pyproject.toml": _render_project(),
        f"workflows/{WORKFLOW}.yaml": workflow.replace("name: plan-build-test", f"name: {WORKFLOW}", 1),
    }
    for name, target in zip(_AGENTS, targets, strict=True):
        texts[target] = f"from {_PACKAGE}.{name} import agent as agent\n"
    texts |= {f"{_HOME}/{_PACKAGE}/{path}": text for path, text in _read_modules(source)}
    with storage_errors(folder):
        try:
            folder.mkdir()
        except FileExistsError:
            raise InvalidSettingError("--team", f"{folder} exists", remedy="choose another folder") from None
        for path, text in texts.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, "utf-8")
    return sorted(texts)


def _read_modules(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The paths and texts of the Python files below a package."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name.isidentifier() and not entry.name.startswith("__"):
            yield from _read_modules(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield f"{prefix}{entry.name}", entry.read_text("utf-8")


def _render_project() -> str:
    """The ``pyproject.toml`` of the agents, with the dependencies of this distribution."""
    needs = ", ".join(f'"{line}"' for line in metadata.requires(_DISTRIBUTION) or () if '"' not in line)
    version = metadata.version(_DISTRIBUTION)
    return f'[project]\nname = "testwriter-agents"\nversion = "{version}"\ndependencies = [{needs}]\n'
