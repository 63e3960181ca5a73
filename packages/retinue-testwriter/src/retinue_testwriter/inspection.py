"""Finds the module that a text names, and its testable functions and classes.

Both are read from source and stubs in subprocesses, without importing the module.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from retinue.core.errors import ExecutionFailedError
from retinue.processes.limited import CommandResult, ProgramLimits, run_command
from retinue_testwriter.subject import Subject, Untestable
from retinue_testwriter.targets import list_targets

_LIMITS = ProgramLimits(wall_s=30, cpu_s=30, processes=4, must_bind=True)
_REMEDY = 'name an importable module ("textwrap", "tests for the json module") or a path to a .py file'

_PATH = re.compile(r"(?:[A-Za-z]:)?[^\s'\"`]*\.py\b")
_QUOTED = re.compile(r"[`'\"]([A-Za-z_][\w.]*)[`'\"]")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_MARKED = (
    re.compile(r"\b(?:module|package|library)\s+(?:named\s+|called\s+)?([A-Za-z_][\w.]*)"),
    re.compile(r"\b([A-Za-z_][\w.]*)\s+(?:module|package|library)\b"),
)
_FOR = re.compile(
    r"\b(?:tests?|testing|cover|check)\s+(?:for|of)?\s*(?:the\s+)?([A-Za-z_][\w.]*\w|[A-Za-z_])"
)
_PROSE = frozenset(
    {"a", "an", "the", "python", "my", "this", "that", "your", "our", "some", "standard", "for", "of", "with"}
    | {"tests", "test", "property", "based", "every", "all", "it", "is", "and", "in", "its", "code"}
    | {"module", "package", "library", "named", "called", "function", "functions", "file", "class"}
)


def find_path(requirements: str) -> str | None:
    """The source file that the text names, if it names one."""
    match = _PATH.search(requirements)
    return match.group(0) if match else None


def list_names(requirements: str) -> Sequence[str]:
    """Names of modules that the text may mean, the likeliest first, without words of prose.

    A text of one word is a name; a sentence marks it: quoted, dotted, "the json module", "tests for json".
    """
    text = requirements.strip()
    if _DOTTED.fullmatch(text):
        return [text]
    mentions = [match.group(1) for match in _QUOTED.finditer(text)]
    mentions += [match.group(1) for pattern in _MARKED for match in pattern.finditer(text)]
    mentions += [match.group(0) for match in _DOTTED.finditer(text) if "." in match.group(0)]
    mentions += [match.group(1) for match in _FOR.finditer(text)]
    names = [name.strip(".") for name in mentions]
    return [name for name in dict.fromkeys(names) if name and name.lower() not in _PROSE]


async def inspect_text(requirements: str, python: str = "") -> Subject:
    """Inspect the module that a text names; raises ExecutionFailedError with the names that were tried."""
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
    """Inspect the module in a source file."""
    full = await asyncio.to_thread(_find_file, path)
    if full is None:
        raise ExecutionFailedError(f"there is no file {path}", remedy=_REMEDY)
    return await _inspect({"path": str(full)}, python, str(path))


def _is_folder(text: str) -> bool:
    try:
        return bool(text) and Path(text).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        # the path is too long, contains a null character, or names an unknown user
        return False


def _find_file(path: Path) -> Path | None:
    full = path.expanduser().absolute()
    return full if full.is_file() else None


async def inspect_names(names: Sequence[str], python: str = "", folder: str = "") -> Subject:
    """Inspect the first of these modules that the interpreter finds; ``folder`` is searched first."""
    request: dict[str, Any] = {"names": list(names), "folders": [folder] if folder else []}
    return await _inspect(request, python, " or ".join(names))


async def _inspect(request: Mapping[str, Any], python: str, wanted: str) -> Subject:
    python = python or sys.executable
    outline = await _ask(python, "outline.py", request)
    if not outline["module"]:
        raise ExecutionFailedError(
            f"{python} finds no module {wanted}",
            remedy=f"{_REMEDY}; for another interpreter, give python (--python)",
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
        resources.as_file(resources.files("retinue_testwriter.inside")) as inside,
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
