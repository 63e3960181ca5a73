"""Describes functions and classes of a parsed source file as plain data. Standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

EXCEPTION_NAME = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Iteration)\b")
QUOTED = re.compile(r"""(?<!\w)'([^'\n]{1,40})'|(?<!\w)"([^"\n]{1,40})\"""")
SPECIAL_TOKEN = re.compile(r"[^\s(){}\[\],.]*[&<>#%$/\\@;=+*^~|:-][^\s(){}\[\],.]*")
CONSTANTS_KEPT = 24


def show(node: Any) -> str | None:
    return None if node is None else ast.unparse(node)


def list_parameters(node: Any) -> list[dict[str, Any]]:
    parameters = []
    arguments = node.args
    positional = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for index, argument in enumerate(positional):
        kind = "positional" if index < len(arguments.posonlyargs) else "either"
        parameters.append((argument, kind, defaults[index]))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):  # noqa: B905
        parameters.append((argument, "keyword", default))
    described = [
        {
            "name": argument.arg,
            "kind": kind,
            "annotation": show(argument.annotation),
            "default": show(default),
        }
        for argument, kind, default in parameters
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
    """Names of the exceptions that a body raises directly."""
    names = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            raised = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
            name = raised.attr if isinstance(raised, ast.Attribute) else getattr(raised, "id", "")
            if name[:1].isupper():
                names.append(name)
    return names


def list_called(node: Any) -> set[str]:
    """Names that a body calls or passes on."""
    names = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            names.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            names.add(inner.attr)
    return names


def list_words(node: Any, doc: str) -> list[str]:
    """Short texts in the examples, the docstring and the code of this function."""
    words = [match.group(1) or match.group(2) for match in QUOTED.finditer(doc)]
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
    entries = []
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
                    entries.append([ast.unparse(argument) for argument in inner.args])
    return entries[:CONSTANTS_KEPT]


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
