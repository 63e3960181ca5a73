"""The digest of Python source: that of its code, without comments, layout and docstrings.

Runs stay with the code of their digest while an interpreter is upgraded. So the digest is the same for each
version of Python that can parse the source. The texts of ``ast.unparse`` and ``ast.dump`` differ between
versions. So the digest is made by a walk over the fields of the tree. Fields without a content are left out,
because new versions add such fields. The module imports the standard library alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields that follow from the place of a node, or say how something was written."""

_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digest_source(source: str) -> str:
    """The digest as ``sha256:…``; raises SyntaxError and ValueError for a text that is no Python."""
    digest = sha256()
    for token in _iterate_tokens(ast.parse(source)):
        digest.update(token)
        digest.update(b"\0")
    return f"sha256:{digest.hexdigest()}"


def _iterate_tokens(tree: ast.AST) -> Iterator[bytes]:
    """The tree as tokens, in a notation with brackets; without recursion, because sources nest deeply."""
    pending: list[Any] = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, bytes):
            yield item
        elif isinstance(item, ast.AST):
            pending.append(b")")
            pending += reversed(list(_describe_node(item)))
        elif isinstance(item, list | tuple):
            pending.append(b"]")
            pending += reversed(item)
            pending.append(b"[")
        else:
            yield _render_constant(item)


def _describe_node(node: ast.AST) -> Iterator[Any]:
    yield b"(" + type(node).__name__.encode()
    for name, value in ast.iter_fields(node):
        if name in _LEFT_OUT:
            continue
        if name == "body" and isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            value = value[1:]
        if name == "values" and isinstance(node, ast.JoinedStr):
            value = list(_join_texts(value))
        if _is_absent(value) and not (isinstance(node, ast.Constant) and name == "value"):
            continue
        yield name.encode()
        yield value


def _is_absent(value: Any) -> bool:
    """Whether a field has no content; an empty format of a value (``{x:}``) is None for some versions."""
    return value is None or value == [] or (isinstance(value, ast.JoinedStr) and not value.values)


def _join_texts(values: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The parts of an f-string; versions of Python differ in where they part its text."""
    text = ""
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            text += value.value
            continue
        if text:
            yield ast.Constant(text)
        text = ""
        yield value
    if text:
        yield ast.Constant(text)


def _render_constant(value: Any) -> bytes:
    """A constant with its type; not by ``repr``, which depends on the version's tables of Unicode."""
    if isinstance(value, str):
        content = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        content = value
    elif isinstance(value, bool) or value is None or value is Ellipsis:
        content = str(value).encode()
    elif isinstance(value, int):
        content = hex(value).encode()  # a long one has no decimal text
    elif isinstance(value, float):
        content = value.hex().encode()
    elif isinstance(value, complex):
        content = f"{value.real.hex()} {value.imag.hex()}".encode()
    else:
        content = repr(value).encode()
    return f"{type(value).__name__} {len(content)} ".encode() + content
