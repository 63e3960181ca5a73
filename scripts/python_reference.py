"""Writes docs/python.md, the reference of the public Python names, from their signatures and docstrings.

python -m scripts.python_reference          writes the page
python -m scripts.python_reference --check  status 1 if the page is not what would be written
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import retinue
from retinue.core.errors import RetinueError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"
WIDTH = 100
_LONGEST_DEFAULT = 40

HEAD = """\
# Python reference

<!-- Written by `python -m scripts.python_reference` from the docstrings. -->

The public names of the package `retinue`. Import them from `retinue`, and the names of the test kit from
the modules that are given below. What this page does not list may change without notice. The
[tutorial](tutorial.md) shows the names in use, [Testing](guides/testing.md) those of the test kit, and
[Adding a protocol](adding-a-protocol.md) the interface of parts.
"""


@dataclass(frozen=True)
class Name:
    """One documented name, the module that has it, and its documented members; None = all."""

    name: str
    members: tuple[str, ...] | None = None
    module: str = "retinue"
    has_constructor: bool = True
    """False if Retinue makes the objects."""


SECTIONS: tuple[tuple[str, str, tuple[Name, ...]], ...] = (
    (
        "Write agents",
        "An `Agent` holds skills. A skill that has a parameter of the type `Context` gets the running call.",
        (
            Name(
                "Agent",
                ("skill", "resource", "prompt", "can", "call", "ask", "execute_skill", "declare", "skills"),
            ),
            Name(
                "Context",
                (
                    "call",
                    "ask",
                    "ask_agents",
                    "mcp",
                    "save",
                    "progress",
                    "stream_text",
                    "has_progress_listener",
                    "log",
                    "elicit",
                    "sample",
                    "roots",
                    "deadline",
                    "cancelled",
                    "idempotency_key",
                    "principal",
                    "trace",
                    "calls_left",
                ),
            ),
            Name("current_context"),
            Name("Part"),
            Name(
                "Artifact",
                ("digest", "link", "read", "open", "save", "details", "sync", "to_json"),
                has_constructor=False,
            ),
            Name(
                "SyncArtifact",
                ("read", "open", "save"),
                module="retinue.mesh.artifacts",
                has_constructor=False,
            ),
            Name("Answer", ()),
            Name("Example", ()),
            Name("Can", ()),
        ),
    ),
    (
        "Find agents",
        "Both functions read registries and need no hub.",
        (
            Name("discover_agent"),
            Name("open_directory"),
            Name(
                "Directory",
                (
                    "discover_agent",
                    "find",
                    "get",
                    "list_all",
                    "list_entries",
                    "resolve_skill",
                    "ask",
                    "refresh",
                    "problems",
                    "subscribe",
                ),
                has_constructor=False,
            ),
            Name("AgentRecord", ("find_skill", "url")),
            Name("Skill", ()),
            Name("Trait", ()),
        ),
    ),
    (
        "Call a mesh from a program",
        "A program needs no agent of its own; the [guide](guides/python-client.md) shows these names in use.",
        (
            Name("connect"),
            Name("connect_sync"),
            Name("MeshConnection", module="retinue.client.mesh_connection", has_constructor=False),
            Name("FoundSkills", (), module="retinue.client.found_skills", has_constructor=False),
            Name("FoundSkill", (), module="retinue.client.found_skills", has_constructor=False),
            Name("CallUpdate", (), module="retinue.client.updates", has_constructor=False),
            Name("Question", (), module="retinue.client.updates", has_constructor=False),
            Name(
                "ReceivedPart",
                ("content", "save"),
                module="retinue.client.received_parts",
                has_constructor=False,
            ),
            Name("RunHandle", module="retinue.client.run_handle", has_constructor=False),
            Name("RunUpdate", (), module="retinue.client.updates", has_constructor=False),
        ),
    ),
    (
        "Results and workflows",
        "",
        (
            Name("Outcome", ("get",)),
            Name("Workflow", ("to_json", "from_json")),
            Name("workflow"),
            Name(
                "Run",
                (
                    "id",
                    "call",
                    "step",
                    "options",
                    "gather",
                    "race",
                    "workflow",
                    "save",
                    "sleep",
                    "receive",
                    "elicit",
                    "now",
                    "random",
                    "patched",
                    "undo",
                ),
                has_constructor=False,
            ),
        ),
    ),
    (
        "Test agents and workflows",
        "The kit runs agents and workflows in the process of a test.",
        (
            Name("scripted_peer", module="retinue.testing.scripted_peer"),
            Name("ScriptedCaller", ("unused",), module="retinue.testing.scripted_caller"),
            Name(
                "ScriptedModel",
                ("from_file", "requests", "list_results", "find_rewritten"),
                module="retinue.testing.scripted_model",
            ),
            Name(
                "RecordedModel", ("recorded", "replayed", "aclose"), module="retinue.testing.recorded_model"
            ),
            Name("ModelTurn", module="retinue.testing.model_script"),
            Name("connect_agents", module="retinue.testing.memory_mesh"),
            Name("MemoryCaller", ("offer",), module="retinue.testing.memory_caller"),
            Name("MemoryArtifacts", (), module="retinue.testing.memory_artifacts"),
        ),
    ),
)


def render_page() -> str:
    """The whole page as Markdown."""
    blocks = [HEAD.strip()]
    for heading, introduction, names in SECTIONS:
        blocks += [f"## {heading}", introduction, *(block for name in names for block in _render_name(name))]
    blocks += ["## Errors", _ERRORS, _render_errors()]
    return "\n\n".join(block for block in blocks if block) + "\n"


_ERRORS = """\
Each error of this package is a `RetinueError`. A skill raises and catches them by class;
[Errors](errors.md) lists their forms at every endpoint."""


def _render_name(entry: Name) -> Iterable[str]:
    thing = getattr(importlib.import_module(entry.module), entry.name)
    yield f"### {entry.name}"
    if entry.module != "retinue":
        yield f"From `{entry.module}`."
    yield from _render_callable(thing, entry.name) if entry.has_constructor else (_document(thing),)
    if not inspect.isclass(thing):
        return
    public = [name for name in vars(thing) if not name.startswith("_") and _is_documented(thing, name)]
    for member in public if entry.members is None else entry.members:
        yield from _render_member(thing, entry.name, member)


def _is_documented(owner: type, name: str) -> bool:
    static = inspect.getattr_static(owner, name)
    return isinstance(static, property | classmethod | staticmethod) or inspect.isfunction(static)


def _render_member(owner: type, owner_name: str, member: str) -> Iterable[str]:
    static = inspect.getattr_static(owner, member)
    if isinstance(static, property):
        kind = inspect.signature(static.fget).return_annotation if static.fget else ""
        yield f"#### {owner_name}.{member}"
        yield f"`{kind}`. {_document(static.fget)}" if kind else _document(static.fget)
        return
    yield f"#### {owner_name}.{member}()"
    name = f"{owner_name}.{member}" if isinstance(static, classmethod | staticmethod) else member
    yield from _render_callable(getattr(owner, member), name)


def _render_callable(thing: Any, name: str) -> Iterable[str]:
    signature = _render_signature(thing, name)
    if signature:
        yield f"```text\n{signature}\n```"
    yield _document(thing)


def _render_signature(thing: Any, name: str) -> str:
    """``name(…) -> type``, one parameter a line where it is long; empty for a model that has too many."""
    signature = inspect.signature(thing)
    shown = [p for p in signature.parameters.values() if p.name != "self" and not p.name.startswith("_")]
    if inspect.isclass(thing) and len(shown) != len(signature.parameters):
        return ""  # made by Retinue, not by its users
    if hasattr(thing, "model_fields"):
        return ""  # a person writes it in YAML
    words: list[str] = []
    keyword_only = is_positional_only = False
    for parameter in shown:
        if is_positional_only and parameter.kind is not parameter.POSITIONAL_ONLY:
            words.append("/")
        is_positional_only = parameter.kind is parameter.POSITIONAL_ONLY
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            words.append("*")
        words.append(_render_parameter(parameter))
    if is_positional_only:
        words.append("/")
    result = signature.return_annotation
    arrow = (
        "" if result in (signature.empty, "None", None) or inspect.isclass(thing) else f" -> {_type(result)}"
    )
    prefix = "async " if inspect.iscoroutinefunction(thing) else ""
    line = f"{prefix}{name}({', '.join(words)}){arrow}"
    if len(line) <= WIDTH:
        return line
    return f"{prefix}{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"


def _render_parameter(parameter: inspect.Parameter) -> str:
    stars = ""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        value = parameter.default
        # the order of a set differs from process to process
        default = (
            f"{{{', '.join(map(repr, sorted(value)))}}}" if isinstance(value, frozenset) else repr(value)
        )
        text += f" = {default if len(default) <= _LONGEST_DEFAULT and '<' not in default else '…'}"
    return text


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _document(thing: Any) -> str:
    """The docstring as Markdown; raises LookupError for a public name without one."""
    text = inspect.getdoc(thing)
    if not text:
        raise LookupError(f"{thing!r} has no docstring")
    paragraphs = re.sub(r"``([^`]+)``", r"`\1`", text).split("\n\n")
    return "\n\n".join(f"```text\n{p}\n```" if p.startswith(">>> ") else p for p in paragraphs)


def _render_errors() -> str:
    rows = ["| class | `type` | meaning |", "|---|---|---|"]
    for name in retinue.__all__:
        kind = getattr(retinue, name)
        if inspect.isclass(kind) and issubclass(kind, RetinueError):
            first = _document(kind).partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            rows.append(f"| `{name}` | `{kind.type}` | {first} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    page = render_page()
    if "--check" not in arguments:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    return 0 if PAGE.read_text("utf-8") == page else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
