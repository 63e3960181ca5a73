"""Two sets of the search benchmark from Python packages, whose source is read and never run.

AgentDojo (MIT): 85 tasks of a person and the tools that solve them; a task may need several. mcp-atlassian
(MIT): the tools of two trackers, with the requests of ``tracker_queries/queries.tsv``. These were written
from the list of tools, before any ranking of them was seen. No weight was chosen on either set.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retinue.core.record import AgentRecord, Listing, Skill
from scripts.environment import ROOT

PACKAGES = ("agentdojo==0.1.35", "mcp-atlassian==0.23.1")
FOLDER = ROOT / ".tools" / "python_tools"
TRACKER_QUERIES = Path(__file__).resolve().parent / "tracker_queries" / "queries.tsv"
INSTALL_WITHIN_S = 300

Question = tuple[str, frozenset[str]]

_PARAMETER = re.compile(r":param (\w+): ([^:]*)")
_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "list": "array"}


class NoPackagesError(Exception):
    """The packages cannot be installed; the text says why."""


def install_packages() -> Path:
    """The folder of the packages, without what they depend on. Raises NoPackagesError."""
    stamp = FOLDER / ".installed"
    if stamp.is_file() and stamp.read_text() == " ".join(PACKAGES):
        return FOLDER
    uv = next((str(path) for path in ROOT.glob(".tools/uv-*/bin/uv")), "uv")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), *PACKAGES]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_WITHIN_S, check=False, cwd=ROOT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPackagesError(f"uv could not install {', '.join(PACKAGES)}: {error}") from error
    if done.returncode:
        raise NoPackagesError(f"uv could not install {', '.join(PACKAGES)}: {done.stderr.strip()}")
    stamp.write_text(" ".join(PACKAGES))
    return FOLDER


def load_dojo() -> tuple[list[Listing], list[Question]]:
    """One listing per tool of AgentDojo, and its tasks. Raises NoPackagesError."""
    suites = install_packages() / "agentdojo" / "default_suites" / "v1"
    skills = [skill for path in sorted((suites / "tools").glob("*.py")) for skill in _read_functions(path)]
    listings = [Listing(AgentRecord("", skills=(skill,)), "dojo", skill.id) for skill in skills]
    tasks = [
        task
        for suite in ("workspace", "slack", "banking", "travel")
        for task in _read_tasks(suites / suite / "user_tasks.py")
    ]
    return listings, tasks


def load_tracker() -> tuple[list[Listing], list[Question]]:
    """Two listings with the tools of mcp-atlassian, and the requests. Raises NoPackagesError."""
    servers = install_packages() / "mcp_atlassian" / "servers"
    listings = []
    for agent in ("jira", "confluence"):
        skills = tuple(_read_tools(servers / f"{agent}.py", agent))
        listings.append(Listing(AgentRecord(agent, skills=skills), "tracker", agent))
    lines = TRACKER_QUERIES.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines if not line.startswith("#"))
    questions = [(text, frozenset(f"tracker/{tool}" for tool in tools.split(","))) for tools, text in pairs]
    known = {f"tracker/{skill.id}" for listing in listings for skill in listing.record.skills}
    if unknown := frozenset().union(*(tools for _, tools in questions)) - known:
        raise NoPackagesError(f"requests name tools that do not exist: {', '.join(sorted(unknown))}")
    return listings, questions


def _read_functions(path: Path) -> Iterator[Skill]:
    """The functions of a module that have a docstring; injected parameters are left out."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if not isinstance(node, ast.FunctionDef) or not text:
            continue
        described = dict(_PARAMETER.findall(text.replace("\n", " ")))
        properties = {
            argument.arg: {"description": described.get(argument.arg, "").strip(), **_type_of(argument)}
            for argument in node.args.args
            if "Depends" not in _annotation(argument)
        }
        yield Skill(node.name, text.split(":param")[0].strip(), input_schema={"properties": properties})


def _read_tools(path: Path, prefix: str) -> Iterator[Skill]:
    """The functions that a decorator of FastMCP marks as tools."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.AsyncFunctionDef) or not any(
            "tool" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            continue
        text = (ast.get_docstring(node) or "").split("Args:")[0].strip()
        properties = {
            argument.arg: {"description": _described(argument), **_type_of(argument)}
            for argument in (*node.args.args, *node.args.kwonlyargs)
            if argument.arg not in ("ctx", "self")
        }
        yield Skill(f"{prefix}_{node.name}", text, input_schema={"properties": properties})


def _read_tasks(path: Path) -> Iterator[Question]:
    """The prompt of each task, and the tools that its solution calls."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef) or not node.name.startswith("UserTask"):
            continue
        values: dict[str, Any] = {}
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                values[statement.targets[0].id] = _read_text(statement.value, values)
        prompt = values.get("PROMPT")
        tools = frozenset(f"dojo/{name}" for name in _called_tools(node))
        if prompt and tools:
            yield prompt, tools


def _read_text(node: ast.expr, values: dict[str, Any]) -> str | None:
    """A text, also an f-string of earlier constants; None for anything else."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return values.get(node.value.id)
    if isinstance(node, ast.JoinedStr):
        parts = [_read_text(part, values) for part in node.values]
        return None if None in parts else "".join(part for part in parts if part is not None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _read_text(node.left, values), _read_text(node.right, values)
        return None if left is None or right is None else left + right
    return None


def _called_tools(node: ast.ClassDef) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "FunctionCall":
            for keyword in call.keywords:
                if keyword.arg == "function" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value)


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation is not None else ""


def _type_of(argument: ast.arg) -> dict[str, str]:
    words = re.findall(r"\w+", _annotation(argument).partition("Field")[0])
    return {"type": next((_TYPES[word] for word in words if word in _TYPES), "string")}


def _described(argument: ast.arg) -> str:
    """The description of a pydantic field in an annotation."""
    for node in ast.walk(argument.annotation) if argument.annotation is not None else ():
        if isinstance(node, ast.keyword) and node.arg == "description":
            try:
                return str(ast.literal_eval(node.value))
            except ValueError:
                return ""
    return ""
