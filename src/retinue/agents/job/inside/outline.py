"""Describe a module from its source, with the interpreter it belongs to, without importing it.

Run as ``python -I outline.py REQUEST``; REQUEST is JSON: ``names`` (importable names, tried in order) or
``path`` (a source file). Prints one JSON object. Standard library only: the interpreter may be a foreign one.
"""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

EXCEPTION_NAME = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration)\b")
QUOTED = re.compile(r"""(?<!\w)'([^'\n]{1,40})'|(?<!\w)"([^"\n]{1,40})\"""")
SPECIAL_TOKEN = re.compile(r"[^\s(){}\[\],.]*[&<>#%$/\\@;=+*^~|:-][^\s(){}\[\],.]*")
KINDS = ("posonlyargs", "args", "kwonlyargs")
CONSTANTS_KEPT = 24
FOLLOW_DEPTH = 3


def find_module(name: str) -> tuple[Any, str]:
    """The spec of a dotted name and the search path entry it hangs from; (None, "") when there is none."""
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
            root = os.path.dirname(os.path.dirname(origin) if is_file_of_package else origin)
        path = spec.submodule_search_locations
        if path is None and index + 1 < len(parts):
            return None, ""
    return spec, root


def name_of_file(path: str) -> tuple[str, str]:
    """The dotted name of a source file and the folder to import it from: up while there is an __init__."""
    folder, leaf = os.path.split(os.path.abspath(path))
    parts = [] if leaf == "__init__.py" else [os.path.splitext(leaf)[0]]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    return ".".join(parts), folder


def show(node: Any) -> str | None:
    return None if node is None else ast.unparse(node)


def list_parameters(node: Any) -> list[dict[str, Any]]:
    found = []
    arguments = node.args
    positional = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for index, argument in enumerate(positional):
        kind = "positional" if index < len(arguments.posonlyargs) else "either"
        found.append((argument, kind, defaults[index]))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):  # noqa: B905
        found.append((argument, "keyword", default))
    described = [
        {
            "name": argument.arg,
            "kind": kind,
            "annotation": show(argument.annotation),
            "default": show(default),
        }
        for argument, kind, default in found
    ]
    for extra, kind in ((arguments.vararg, "rest"), (arguments.kwarg, "options")):
        if extra is not None:
            described.append(
                {"name": extra.arg, "kind": kind, "annotation": show(extra.annotation), "default": None}
            )
    return described


def own_nodes(node: Any) -> Iterator[ast.AST]:
    """The nodes of a body without those of nested functions."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        current = waiting.pop(0)
        yield current
        if not isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(current))


def list_raised(node: Any) -> list[str]:
    """Names of the exceptions that a body raises by itself."""
    found = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            raised = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
            name = raised.attr if isinstance(raised, ast.Attribute) else getattr(raised, "id", "")
            if name[:1].isupper():
                found.append(name)
    return found


def list_called(node: Any) -> set[str]:
    """Names that a body calls or hands on, whoever they belong to."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            found.add(inner.attr)
    return found


def list_words(node: Any, doc: str) -> list[str]:
    """Short texts that mean something to this function: in its examples, its docstring, its code."""
    words = []
    for match in QUOTED.finditer(doc):
        words.append(match.group(1) or match.group(2))
    words += [token.strip("'\"`") for token in SPECIAL_TOKEN.findall(doc) if 1 < len(token) <= 20]
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value != doc:
            if 0 < len(inner.value) <= 20 and "\n" not in inner.value:
                words.append(inner.value)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, bytes) and len(inner.value) <= 20:
            words.append(inner.value.decode("latin-1"))
    return list(dict.fromkeys(word for word in words if word.strip()))[:CONSTANTS_KEPT]


def list_examples(doc: str, name: str) -> list[list[str]]:
    """Argument lists of the calls to ``name`` in the doctest examples of a docstring."""
    found = []
    for line in doc.splitlines():
        text = line.strip()
        if not text.startswith(">>>"):
            continue
        try:
            tree = ast.parse(text[3:].strip())
        except SyntaxError:
            continue
        for inner in ast.walk(tree):
            if isinstance(inner, ast.Call):
                called = getattr(inner.func, "id", getattr(inner.func, "attr", ""))
                if called == name and not inner.keywords:
                    found.append([ast.unparse(argument) for argument in inner.args])
    return found[:CONSTANTS_KEPT]


def describe_function(node: Any) -> dict[str, Any]:
    doc = ast.get_docstring(node) or ""
    nodes = list(own_nodes(node))
    return {
        "name": node.name,
        "line": node.lineno,
        "parameters": list_parameters(node),
        "returns": show(node.returns),
        "doc": doc,
        "raises": sorted(set(list_raised(node)) | set(EXCEPTION_NAME.findall(doc))),
        "calls": sorted(list_called(node)),
        "words": list_words(node, doc),
        "examples": list_examples(doc, node.name),
        "decorators": [ast.unparse(decorator) for decorator in node.decorator_list],
        "is_async": isinstance(node, ast.AsyncFunctionDef),
        "is_generator": any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in nodes),
    }


def describe_class(node: Any) -> dict[str, Any]:
    doc = ast.get_docstring(node) or ""
    functions = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    fields = [
        {
            "name": n.target.id,
            "kind": "either",
            "annotation": ast.unparse(n.annotation),
            "default": show(n.value),
        }
        for n in node.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    ]
    methods = {}
    for function in functions:
        if not any(
            "setter" in ast.unparse(d) or "deleter" in ast.unparse(d) for d in function.decorator_list
        ):
            methods[function.name] = describe_function(function)
    return {
        "name": node.name,
        "line": node.lineno,
        "bases": [ast.unparse(base) for base in node.bases],
        "doc": doc,
        "fields": fields,
        "methods": list(methods.values()),
        "decorators": [ast.unparse(decorator) for decorator in node.decorator_list],
        "examples": list_examples(doc, node.name),
        "words": list_words(ast.Pass(), doc),
    }


def spread_raises(functions: Any) -> None:
    """What a function calls in its own file may raise through it."""
    by_name = {}
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
    """The names of a literal ``__all__``, None when it is worked out at run time."""
    try:
        return [str(name) for name in ast.literal_eval(node)]
    except ValueError:
        return None


def describe_file(path: str, module: str, is_package: bool, depth: int = 0) -> dict[str, Any]:
    """Functions, classes, aliases and public names of one source file."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    functions, classes, aliases, constants, imported, exported = {}, {}, {}, {}, {}, None
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
        everything.append(by_init)
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
    """Take in what the module offers but another file of the same package defines."""
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
    answer = {
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
        "error": "",
    }
    sys.path[:] = [*request.get("folders", []), *sys.path]
    path, package = request.get("path", ""), False
    if path:
        answer["module"], answer["root"] = name_of_file(path)
        answer["source"] = os.path.abspath(path)
        package = os.path.basename(path) == "__init__.py"
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
    try:
        if answer["source"]:
            answer.update(describe_file(answer["source"], answer["module"], package))
    except SyntaxError as error:
        answer["error"] = f"line {error.lineno}: {error.msg}"
    except (OSError, ValueError) as error:
        answer["error"] = str(error)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
