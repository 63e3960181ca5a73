"""Seeds one small fault into a copy of a module: an operator, a constant, a return value."""

from __future__ import annotations

import ast
import copy
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}


@dataclass(frozen=True)
class Fault:
    """One change: in which public function, at which line, what became of what; the changed source."""

    function: str
    line: int
    change: str
    source: str


def list_faults(source: str) -> list[Fault]:
    """Every single-point fault in the public functions of a module, in the order of the source."""
    tree = ast.parse(source)
    faults = []
    for name, index in _list_public(tree):
        for position, change in enumerate(_list_changes(_find(tree, index))):
            mutated = copy.deepcopy(tree)
            target = _find(mutated, index)
            node, describe = list(_list_changes(target))[position]
            del change
            before, line = ast.unparse(node), node.lineno
            describe()
            faults.append(Fault(name, line, f"{before} → {ast.unparse(node)}", ast.unparse(mutated)))
    return faults


def choose_faults(source: str, count: int) -> list[Fault]:
    """``count`` faults spread evenly over those of the module, the same ones each time."""
    faults = list_faults(source)
    return [faults[(2 * number + 1) * len(faults) // (2 * count)] for number in range(count)]


def copy_module(module: str, source: Path, root: Path, into: Path, text: str) -> Path:
    """Copy a module (its whole package, if it has one) below ``into`` with ``text`` as its source."""
    if "." in module or source.name == "__init__.py":
        package = module.split(".")[0]
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / package, into / package, ignore=ignored, dirs_exist_ok=True)
    copied = into / source.relative_to(root)
    copied.parent.mkdir(parents=True, exist_ok=True)
    copied.write_text(_without_accelerators(text), encoding="utf-8")
    return copied


def _without_accelerators(text: str) -> str:
    """Without ``from _module import *``: a compiled twin would hide the fault."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            node.body = [
                ast.Pass() if isinstance(s, ast.ImportFrom) and (s.module or "").startswith("_") else s
                for s in node.body
            ]
    return ast.unparse(ast.fix_missing_locations(tree))


def _list_public(tree: ast.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    offered = _read_all(tree)
    for number, node in enumerate(tree.body):
        if offered is not None and getattr(node, "name", "") not in offered:
            continue
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, (number,)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner, method in enumerate(node.body):
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    yield f"{node.name}.{method.name}", (number, inner)


def _read_all(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def _find(tree: ast.Module, index: tuple[int, ...]) -> ast.FunctionDef:
    node: ast.AST = tree
    for number in index:
        node = node.body[number]  # type: ignore[attr-defined]
    assert isinstance(node, ast.FunctionDef)
    return node


def _list_changes(function: ast.FunctionDef):  # type: ignore[no-untyped-def]
    """(node, change it in place) for every place of a function that can be made wrong."""
    doc = ast.get_docstring(function, clean=False)
    for statement in function.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
                yield node, lambda n=node: n.ops.__setitem__(0, _COMPARISONS[type(n.ops[0])]())
            elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
                yield node, lambda n=node: setattr(n, "op", _OPERATORS[type(n.op)]())
            elif isinstance(node, ast.BoolOp):
                other = ast.Or if isinstance(node.op, ast.And) else ast.And
                yield node, lambda n=node, o=other: setattr(n, "op", o())
            elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
                yield node, lambda n=node: setattr(n, "value", not n.value)
            elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                yield node, lambda n=node: setattr(n, "value", n.value + 1)
            elif isinstance(node, ast.Return) and node.value is not None:
                yield node, lambda n=node: setattr(n, "value", ast.Constant(None))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != doc:
                yield node, lambda n=node: setattr(n, "value", n.value + "x")
