"""Describes a module from its source, with its own interpreter, without importing it.

Run as ``python -I outline.py REQUEST``; REQUEST is JSON: ``names`` (importable names, tried in order) or
``path`` (a source file). Prints one JSON object. Standard library only, because the interpreter may lack
other packages.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from describing import describe_class, describe_function  # type: ignore[import-not-found]

sys.path.pop(0)  # scripts in this folder must not be found as modules

FOLLOW_DEPTH = 3


def find_module(name: str) -> tuple[Any, str]:
    """The spec of a dotted name and its search path entry; (None, "") if it is not found."""
    path, root = None, ""
    spec = None
    parts = name.split(".")
    for index in range(len(parts)):
        full = ".".join(parts[: index + 1])
        spec = importlib.machinery.PathFinder.find_spec(full, path)
        if spec is None:
            return None, ""
        if index == 0:
            origin = spec.origin or next(iter(spec.submodule_search_locations or []), "")
            is_file_of_package = spec.submodule_search_locations and spec.origin
            root = str(Path(origin).parent.parent if is_file_of_package else Path(origin).parent)
        path = spec.submodule_search_locations
        if path is None and index + 1 < len(parts):
            return None, ""
    return spec, root


def name_of_file(path: str) -> tuple[str, str]:
    """The dotted name of a source file and the folder to import it from, above all packages."""
    file = Path(path).absolute()
    parts = [] if file.name == "__init__.py" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), str(folder)


def spread_raises(functions: Any) -> None:
    """Add to each function the exceptions of the functions of its file that it calls."""
    by_name: dict[str, list[Any]] = {}
    for function in functions:
        by_name.setdefault(function["name"], []).append(function)
    changed = True
    while changed:
        changed = False
        for function in functions:
            raised = set(function["raises"])
            for called in function["calls"]:
                for other in by_name.get(called, ()):
                    raised |= set(other["raises"])
            if len(raised) > len(function["raises"]):
                function["raises"] = sorted(raised)
                changed = True


def list_statements(tree: Any) -> Iterator[ast.stmt]:
    """Top-level statements, also those under ``if`` and ``try``."""
    for node in tree.body:
        if isinstance(node, ast.If):
            yield from list_statements(node)
            yield from list_statements(ast.Module(body=node.orelse, type_ignores=[]))
        elif isinstance(node, ast.Try):
            yield from list_statements(node)
            for handler in node.handlers:
                yield from list_statements(handler)
        else:
            yield node


def read_all(node: Any) -> list[str] | None:
    """The names of a literal ``__all__``; None if it is computed."""
    try:
        return [str(name) for name in ast.literal_eval(node)]
    except ValueError:
        return None


def describe_file(path: str, module: str, is_package: bool, depth: int = 0) -> dict[str, Any]:
    """Functions, classes, aliases and public names of one source file."""
    tree = ast.parse(Path(path).read_bytes(), path)
    functions: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    constants: dict[str, str] = {}
    imported: dict[str, tuple[int, str, str]] = {}
    exported: list[str] | None = None
    for node in list_statements(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.setdefault(node.name, describe_function(node))
        elif isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, describe_class(node))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported[alias.asname or alias.name] = (node.level, node.module or "", alias.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if not isinstance(target, ast.Name):
                    continue
                if target.id == "__all__":
                    names = read_all(node.value)
                    exported = (exported or []) + names if names is not None else exported
                elif isinstance(node.value, ast.Name):
                    aliases[target.id] = node.value.id
                else:
                    constants[target.id] = ast.unparse(node.value)[:400]
    everything = list(functions.values())
    for described in classes.values():
        everything += described["methods"]
        by_init = {"name": described["name"], "calls": ["__init__", "__new__", "__post_init__"], "raises": []}
        own = [m for m in described["methods"] if m["name"] in by_init["calls"]]
        by_init["raises"] = sorted({name for method in own for name in method["raises"]})
        by_init["calls"] = sorted({name for method in own for name in method["calls"]})
        by_init["name"] = ""  # a function that names the class may call any of its methods
        everything.append(by_init)
        methods = [method["name"] for method in described["methods"]]
        everything.append({"name": described["name"], "calls": methods, "raises": []})
        described["raises_of"] = by_init
    spread_raises(everything)
    for described in classes.values():
        described["raises"] = described.pop("raises_of")["raises"]
    public = exported
    if public is None:
        public = [name for name in [*functions, *classes, *aliases] if not name.startswith("_")]
    result = {
        "functions": functions,
        "classes": classes,
        "aliases": aliases,
        "constants": constants,
        "public": list(dict.fromkeys(public)),
        "doc": ast.get_docstring(tree) or "",
    }
    if depth < FOLLOW_DEPTH:
        follow_imports(result, imported, module, is_package, depth)
    return result


def follow_imports(result: Any, imported: Any, module: str, is_package: bool, depth: int) -> None:
    """Add names of the module that another file of the same package defines."""
    top = module.split(".")[0]
    cache = {}
    for name in result["public"]:
        if name in result["functions"] or name in result["classes"] or name not in imported:
            continue
        level, source, original = imported[name]
        if level:
            parts = module.split(".") if is_package else module.split(".")[:-1]
            parts = parts[: len(parts) - (level - 1)]
            source = ".".join([*parts, source] if source else parts)
        if source.split(".")[0] != top or source == module:
            continue
        if source not in cache:
            spec, _root = find_module(source)
            readable = spec is not None and spec.origin and spec.origin.endswith(".py")
            is_inner = bool(readable and spec.submodule_search_locations)
            cache[source] = describe_file(spec.origin, source, is_inner, depth + 1) if readable else None
        other = cache[source]
        if other is None:
            continue
        for kind in ("functions", "classes"):
            if original in other[kind]:
                result[kind][name] = {**other[kind][original], "name": name}
        result["constants"] = {**other["constants"], **result["constants"]}


def main() -> None:
    request = json.loads(sys.argv[1])
    answer: dict[str, Any] = {
        "executable": sys.executable,
        "version": list(sys.version_info[:3]),
        "search_path": [entry for entry in sys.path if entry],
        "tools": [
            name
            for name in ("hypothesis", "pytest", "coverage")
            if importlib.machinery.PathFinder.find_spec(name)
        ],
        "module": "",
        "source": "",
        "root": "",
        "standard": False,
        "digest": "",
        "error": "",
    }
    sys.path[:] = [*request.get("folders", []), *sys.path]
    path, package = request.get("path", ""), False
    if path:
        answer["module"], answer["root"] = name_of_file(path)
        answer["source"] = str(Path(path).absolute())
        package = Path(path).name == "__init__.py"
        sys.path.insert(0, answer["root"])
    else:
        for name in request["names"]:
            spec, root = find_module(name)
            if spec is not None or name in sys.builtin_module_names:
                source = spec.origin if spec is not None else ""
                package = bool(spec is not None and spec.submodule_search_locations)
                answer["module"], answer["root"] = name, root
                answer["source"] = source if source and source.endswith(".py") else ""
                break
    # compiled modules of the standard library are in a subfolder
    library = Path(tempfile.__file__).parent
    answer["standard"] = answer["root"] in ("", str(library), str(library / "lib-dynload"))
    try:
        if answer["source"]:
            answer["digest"] = hashlib.sha256(Path(answer["source"]).read_bytes()).hexdigest()
            answer.update(describe_file(answer["source"], answer["module"], package))
    except SyntaxError as error:
        answer["error"] = f"line {error.lineno}: {error.msg}"
    except (OSError, ValueError) as error:
        answer["error"] = str(error)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
