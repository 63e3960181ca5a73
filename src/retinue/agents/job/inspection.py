"""What a module offers, read from its source and its stubs in subprocesses; nothing is imported."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from retinue.agents.job.naming import find_path, list_names
from retinue.agents.job.subject import Subject, Untestable
from retinue.agents.job.targets import list_targets
from retinue.core.errors import ExecutionFailedError
from retinue.drivers.commands import CommandResult, Limits, run_command

_LIMITS = Limits(wall_s=30, cpu_s=30, processes=4)
_REMEDY = 'name an importable module ("textwrap", "tests for the json module") or a path to a .py file'


async def inspect_text(requirements: str, python: str = "") -> Subject:
    """The module that free text asks about; raises ExecutionFailedError that names what was looked for."""
    path = find_path(requirements)
    if path is not None:
        return await inspect_file(Path(path), python)
    names = list_names(requirements)
    if not names:
        shown = requirements.strip()[:80]
        if await asyncio.to_thread(_is_folder, requirements.strip()):
            file = Path(shown) / "module.py"
            raise ExecutionFailedError(
                f"'{shown}' is a folder; tests are written for one module at a time",
                remedy=f"name a file in it, such as {file}, or a package that can be imported",
            )
        raise ExecutionFailedError(f"'{shown}' names no Python module to write tests for", remedy=_REMEDY)
    return await inspect_names(names, python)


async def inspect_file(path: Path, python: str = "") -> Subject:
    """The module in a source file."""
    full = await asyncio.to_thread(_find_file, path)
    if full is None:
        raise ExecutionFailedError(f"there is no file {path}", remedy=_REMEDY)
    return await _inspect({"path": str(full)}, python, str(path))


def _is_folder(text: str) -> bool:
    try:
        return bool(text) and Path(text).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        # too long for a path, with a null character in it, or of a user that is not there
        return False


def _find_file(path: Path) -> Path | None:
    full = path.expanduser().absolute()
    return full if full.is_file() else None


async def inspect_names(names: Sequence[str], python: str = "", folder: str = "") -> Subject:
    """The first of these importable names that the interpreter finds; ``folder`` is searched first."""
    request: dict[str, Any] = {"names": list(names), "folders": [folder] if folder else []}
    return await _inspect(request, python, " or ".join(names))


async def _inspect(request: Mapping[str, Any], python: str, wanted: str) -> Subject:
    python = python or sys.executable
    outline = await _ask(python, "outline.py", request)
    if not outline["module"]:
        raise ExecutionFailedError(
            f"{python} finds no module {wanted}", remedy=f"{_REMEDY}; another interpreter with python="
        )
    if outline["error"]:
        raise ExecutionFailedError(f"cannot read {outline['source']}: {outline['error']}")
    stubs = await _ask(
        sys.executable,
        "stubs.py",
        {
            "module": outline["module"],
            "source": outline["source"],
            "standard": outline["standard"],
            "version": outline["version"],
            "search_path": [outline["root"], *outline["search_path"]],
        },
    )
    targets, untestable = list_targets(outline, stubs)
    functions = outline.get("functions", {})
    aliases = outline.get("aliases", {})
    return Subject(
        module=outline["module"],
        source=outline["source"],
        root=outline["root"],
        python=python,
        version=tuple(outline["version"]),
        digest=outline["digest"],
        search_path=tuple(outline["search_path"]),
        tools=tuple(outline["tools"]),
        targets=tuple(targets),
        classes=tuple(target.builds for target in targets if target.builds),
        same=tuple((a, o) for a, o in aliases.items() if o in functions and not a.startswith("_")),
        aliases={**outline.get("constants", {}), **aliases, **stubs["aliases"]},
        untestable=tuple(Untestable(*entry) for entry in untestable),
    )


async def _ask(python: str, script: str, request: Mapping[str, Any]) -> Any:
    """Run one of the scripts in ``inside`` and read the JSON that it prints."""
    with (
        tempfile.TemporaryDirectory(prefix="retinue-inspect-") as folder,
        resources.as_file(resources.files("retinue.agents.job.inside")) as inside,
    ):
        result = await run_command(
            [python, "-I", str(inside / script), json.dumps(request)], folder=Path(folder), limits=_LIMITS
        )
    if not result.ok:
        raise ExecutionFailedError(f"{python} could not inspect the module: {describe_end(result)}")
    return json.loads(result.stdout)


def describe_end(result: CommandResult) -> str:
    """How a command ended, in one line."""
    if result.limit:
        return f"it passed its {result.limit.replace('_', ' ')} limit after {result.duration_s:.1f} s"
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    ended = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
    return f"{ended}: {lines[-1]}" if lines else ended
