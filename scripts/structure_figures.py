"""Counts the structure of a checkout: files, lines, folders, protocol classes, dependencies.

python scripts/structure_figures.py [DIR …]         a Markdown table, one column for each distribution
python scripts/structure_figures.py --list [DIR …]  also the folders, short files and protocols behind it

A checkout has its main distribution in src/ and others in packages/*/src/. Only the standard library is
needed, so that a checkout of any age can be counted. Without DIR: the checkout of this script.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT_LINES = 60
LARGE_FOLDER_FILES = 20
IN_MEMORY = (".testing.", ".twin.")
"""Folders whose classes are in-memory twins for tests, not production implementations."""

_NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python file; ``code_lines`` excludes blank lines, comments and docstrings."""

    path: Path
    module: str
    lines: int
    code_lines: int
    tree: ast.Module


@dataclass(slots=True)
class ClassFacts:
    """A class as written: its bases, resolved to module paths, and its members by name."""

    name: str
    bases: list[str]
    members: dict[str, Function | None] = field(default_factory=dict)
    """A method, or None for an attribute."""

    @property
    def is_protocol(self) -> bool:
        return any(base in ("typing.Protocol", "typing_extensions.Protocol") for base in self.bases)


@dataclass(frozen=True)
class Distribution:
    """One distribution of a checkout."""

    name: str
    dependencies: Sequence[str]
    files: Sequence[SourceFile]

    @cached_property
    def files_by_folder(self) -> Counter[Path]:
        return Counter(file.path.parent for file in self.files)

    @property
    def large_folders(self) -> dict[Path, int]:
        return {path: n for path, n in self.files_by_folder.items() if n > LARGE_FOLDER_FILES}

    @property
    def modules(self) -> list[SourceFile]:
        """The files without ``__init__.py``."""
        return [one for one in self.files if one.path.name != "__init__.py"]

    @property
    def short_modules(self) -> list[SourceFile]:
        return [one for one in self.modules if one.lines < SHORT_LINES]

    @cached_property
    def implementations(self) -> dict[str, list[str]]:
        """Protocol class → the production classes that implement it, both with their modules.

        A class implements a protocol when it names it as a base, or when it has all its members, each
        method with parameters that the protocol's callers can fill.
        """
        classes = {one.name: one for file in self.files for one in _list_classes(file)}
        members = {name: _list_members(name, classes) for name in classes}
        found: dict[str, list[str]] = {}
        for protocol in (one for one in classes.values() if one.is_protocol):
            wanted = members[protocol.name]
            found[protocol.name] = [
                one.name
                for one in classes.values()
                if wanted and not one.is_protocol and not any(folder in one.name for folder in IN_MEMORY)
                if protocol.name in _list_ancestors(one.name, classes) or _fits(members[one.name], wanted)
            ]
        return found


def list_distributions(checkout: Path) -> list[Distribution]:
    """The distributions of a checkout, the main one first."""
    return [_read_distribution(path.parent) for path in _list_projects(checkout)]


def _list_projects(checkout: Path) -> list[Path]:
    return [checkout / "pyproject.toml", *sorted(checkout.glob("packages/*/pyproject.toml"))]


def _read_distribution(root: Path) -> Distribution:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = root / "src"
    files = [_read_file(path, source) for path in sorted(source.rglob("*.py"))]
    return Distribution(project["name"], project.get("dependencies", []), files)


def _read_file(path: Path, source: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    module = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
    tree = ast.parse(text)
    return SourceFile(path, module, len(text.splitlines()), _count_code_lines(text, tree), tree)


def _count_code_lines(text: str, tree: ast.Module) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        # docstrings, those of attributes too
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _list_classes(file: SourceFile) -> Iterator[ClassFacts]:
    names = _list_imports(file)
    names |= {
        node.name: f"{file.module}.{node.name}" for node in file.tree.body if isinstance(node, ast.ClassDef)
    }
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ClassDef):
            bases = [_resolve(base, names) for base in node.bases]
            yield ClassFacts(f"{file.module}.{node.name}", bases, dict(_list_own_members(node)))


def _list_imports(file: SourceFile) -> dict[str, str]:
    """Local name → what it is imported from."""
    names: dict[str, str] = {}
    package = file.module if file.path.name == "__init__.py" else file.module.rpartition(".")[0]
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            names |= {one.asname or one.name: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (above, node.module) if part)
            names |= {one.asname or one.name: f"{origin}.{one.name}" for one in node.names}
    return names


def _resolve(base: ast.expr, names: dict[str, str]) -> str:
    if isinstance(base, ast.Subscript):
        return _resolve(base.value, names)
    head, dot, rest = ast.unparse(base).partition(".")
    return names.get(head, head) + dot + rest


def _list_own_members(node: ast.ClassDef) -> Iterator[tuple[str, Function | None]]:
    for one in node.body:
        if isinstance(one, Function):
            marks = {ast.unparse(mark).rpartition(".")[2] for mark in one.decorator_list}
            yield one.name, None if marks & {"property", "cached_property", "setter"} else one
            yield from ((name, None) for name in _list_assigned_attributes(one))
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id, None
        elif isinstance(one, ast.Assign):
            yield from ((to.id, None) for to in one.targets if isinstance(to, ast.Name))


def _list_assigned_attributes(method: Function) -> Iterator[str]:
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _list_ancestors(name: str, classes: dict[str, ClassFacts]) -> list[str]:
    """The class and those of its bases that are in the tree, nearest first."""
    found = [name]
    for one in found:
        found += [base for base in classes[one].bases if base in classes and base not in found]
    return found


def _list_members(name: str, classes: dict[str, ClassFacts]) -> dict[str, Function | None]:
    members: dict[str, Function | None] = {}
    for one in reversed(_list_ancestors(name, classes)):
        members |= classes[one].members
    return members


def _fits(members: dict[str, Function | None], wanted: dict[str, Function | None]) -> bool:
    for name, method in wanted.items():
        if name not in members:
            return False
        own = members[name]
        if method is not None and (own is None or not _accepts(own, method)):
            return False
    return True


def _accepts(own: Function, wanted: Function) -> bool:
    """Whether ``own`` can be called as ``wanted`` is declared, by the names of the parameters."""
    if _is_awaited(own) != _is_awaited(wanted):
        return False
    has, needs = own.args, wanted.args
    positional = [one.arg for one in (*has.posonlyargs, *has.args)]
    needed = [one.arg for one in (*needs.posonlyargs, *needs.args)]
    by_name = {*positional, *(one.arg for one in has.kwonlyargs)}
    if (
        has.vararg is None
        and positional[len(needs.posonlyargs) : len(needed)] != needed[len(needs.posonlyargs) :]
    ):
        return False
    if has.kwarg is None and not by_name.issuperset(one.arg for one in needs.kwonlyargs):
        return False
    given = {*needed, *(one.arg for one in needs.kwonlyargs)}
    required = positional[: len(positional) - len(has.defaults)][len(needed) :]
    required += [
        one.arg for one, default in zip(has.kwonlyargs, has.kw_defaults, strict=True) if default is None
    ]
    return given.issuperset(required)


def _is_awaited(method: Function) -> bool:
    returns = "" if method.returns is None else ast.unparse(method.returns)
    if isinstance(method, ast.AsyncFunctionDef):
        return not returns.startswith(("AsyncIterator", "AsyncGenerator"))
    return returns.startswith(("Awaitable", "Coroutine"))


def render_table(distributions: Sequence[Distribution], heads: Sequence[str]) -> str:
    """The figures as Markdown, one column for each distribution."""
    columns = [_list_figures(one) for one in distributions]
    rows = [["", *heads], ["---", *("---:" for _ in heads)]]
    rows += [[name, *(column[name] for column in columns)] for name in columns[0]]
    widths = [max(len(cell) for cell in cells) for cells in zip(*rows, strict=True)]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def _list_figures(one: Distribution) -> dict[str, str]:
    lines = [file.lines for file in one.files]
    counts = Counter(len(found) for found in one.implementations.values())
    return {
        "Python files": f"{len(lines):,}",
        "lines": f"{sum(lines):,}",
        "code lines": f"{sum(file.code_lines for file in one.files):,}",
        "median lines, without `__init__.py`": f"{statistics.median(file.lines for file in one.modules):g}",
        f"files under {SHORT_LINES} lines, without `__init__.py`": str(len(one.short_modules)),
        "folders": str(len(one.files_by_folder)),
        "files of the largest folder": str(max(one.files_by_folder.values())),
        f"folders with more than {LARGE_FOLDER_FILES} files": str(len(one.large_folders)),
        "protocol classes": str(sum(counts.values())),
        "protocol classes with one implementation": str(counts[1]),
        "protocol classes with none": str(counts[0]),
        "dependencies": str(len(one.dependencies)),
    }


def _list_details(one: Distribution) -> Iterator[str]:
    yield f"\n{one.name}: folders with more than {LARGE_FOLDER_FILES} files"
    yield from (f"  {count:4} {folder}" for folder, count in sorted(one.large_folders.items()))
    yield f"{one.name}: files under {SHORT_LINES} lines"
    yield from (
        f"  {file.lines:4} {file.module}" for file in sorted(one.short_modules, key=lambda at: at.lines)
    )
    yield f"{one.name}: protocol classes and their implementations"
    for protocol, found in sorted(one.implementations.items(), key=lambda item: (len(item[1]), item[0])):
        yield f"  {len(found):4} {protocol}: {', '.join(found)}"
    yield f"{one.name}: dependencies: {', '.join(one.dependencies)}"


def main(arguments: Iterable[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], metavar="DIR")
    parser.add_argument("--list", action="store_true", help="also print what was counted")
    given = parser.parse_args(list(arguments))
    found = [(checkout, one) for checkout in given.checkouts for one in list_distributions(checkout)]
    heads = [
        one.name if len(given.checkouts) == 1 else f"{one.name} in {checkout}" for checkout, one in found
    ]
    print(render_table([one for _, one in found], heads))
    if given.list:
        for _, one in found:
            print("\n".join(_list_details(one)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
