"""Breaks long expressions into lines, so that generated tests are readable."""

from __future__ import annotations

import ast

WIDTH = 100
_STEP = "    "


def format_expression(source: str, indent: str = "", offset: int = 0) -> str:
    """Break an expression into lines; ``offset`` columns of the first line are already used."""
    try:
        node = ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        return source
    return _format(node, indent, offset)


def format_assertion(line: str, indent: str = "") -> str:
    """Break an ``assert a == b`` or ``assert a is b`` into lines."""
    if len(indent) + len(line) <= WIDTH:
        return indent + line
    try:
        node = ast.parse(line).body[0]
    except SyntaxError:
        return indent + line
    if not (isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare)):
        return indent + line
    operator = "is" if isinstance(node.test.ops[0], ast.Is) else "=="
    left = _parenthesise(node.test.left, _format(node.test.left, indent, 7))
    offset = len(left.splitlines()[-1]) + len(operator) + 2
    right = _format(node.test.comparators[0], indent, offset + (7 if "\n" not in left else 0))
    return f"{indent}assert {left} {operator} {right}"


def _parenthesise(node: ast.expr, text: str) -> str:
    return f"({text})" if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp) else text


def _format(node: ast.expr, indent: str, offset: int) -> str:
    flat = ast.unparse(node)
    if len(indent) + offset + len(flat) <= WIDTH:
        return flat
    inner = indent + _STEP
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        members = [_format(member, inner, 2) for member in _list_members(node)]
        return "(\n" + inner + f"\n{inner}| ".join(members) + f"\n{indent})"
    if isinstance(node, ast.Call) and (node.args or node.keywords):
        return _format_call(node, indent)
    if isinstance(node, ast.List | ast.Tuple | ast.Set) and node.elts:
        brackets = {ast.List: ("[", "]"), ast.Tuple: ("(", ")"), ast.Set: ("{", "}")}
        opening, closing = brackets[type(node)]
        return opening + "\n" + _fill(node.elts, inner) + f"\n{indent}{closing}"
    return flat


def _format_call(node: ast.Call, indent: str) -> str:
    """A call with its arguments below it; a chain of methods keeps its dots."""
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        head = f"{_format(node.func.value, indent, 0)}.{node.func.attr}"
    else:
        head = ast.unparse(node.func)
    arguments: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    if len(head.splitlines()[-1]) + sum(len(ast.unparse(a)) + 2 for a in arguments) < WIDTH // 2:
        return f"{head}({', '.join(ast.unparse(argument) for argument in arguments)})"
    inner = indent + _STEP
    lines = []
    for argument in arguments:
        if isinstance(argument, ast.keyword):
            name = f"{argument.arg}="
            lines.append(f"{inner}{name}{_format(argument.value, inner, len(name) + 1)},")
        else:
            lines.append(f"{inner}{_format(argument, inner, 1)},")
    return head + "(\n" + "\n".join(lines) + f"\n{indent})"


def _fill(elements: list[ast.expr], indent: str) -> str:
    """Elements of a display, as many to a line as fit."""
    lines, line = [], ""
    for element in elements:
        text = f"{_format(element, indent, 1)},"
        if line and len(indent) + len(line) + len(text) + 1 > WIDTH:
            lines.append(indent + line)
            line = ""
        line = f"{line} {text}" if line else text
    return "\n".join([*lines, indent + line])


def _list_members(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_list_members(node.left), *_list_members(node.right)]
    return [node]
