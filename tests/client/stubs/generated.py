"""Reads generated modules: checks every statement, and makes modules of single skills."""

from __future__ import annotations

import ast
from typing import Any

from retinue.client.stubs.module import render_module
from retinue.client.stubs.section import StubSkill

_GENERIC = {"dict", "list", "Literal", "NotRequired", "Unpack"}
_PLAIN = {"Any", "CallLimits", "Never", "bool", "float", "int", "str"}
_IMPORTED = {"__future__", "typing", "retinue.core.budget"} | {
    "retinue.client.mesh_connection",
    "retinue.client.sync_connection",
}


def make_skill(skill_id: str = "do", **facts: Any) -> StubSkill:
    """A skill with these facts, at any agent."""
    defaults: dict[str, Any] = {
        "agent": None,
        "name": skill_id,
        "description": "",
        "input_schema": None,
        "output_schema": None,
    }
    return StubSkill(skill_id, **{**defaults, **facts})


def render(*skills: StubSkill, is_sync: bool = False) -> str:
    """The module with these skills."""
    return render_module(skills, command="retinue stubs x.py", is_sync=is_sync)


def types_of(schema: Any) -> list[str]:
    """The lines of the types that the output schema of a skill ``do`` gives, and the result type."""
    text = render(make_skill(output_schema=schema)).partition("# skill ")[2]
    lines = text.splitlines()[1:]
    start = next(at for at, line in enumerate(lines) if line.startswith("async def do("))
    result = next(line for line in lines if line.startswith(") -> "))
    return [*(line for line in lines[:start] if line), result.removeprefix(") -> ").removesuffix(":")]


def check_statements(text: str) -> dict[str, ast.AST]:
    """The functions and types of a generated module by name; AssertionError for any other statement."""
    tree = ast.parse(text)
    head, *body = tree.body
    assert isinstance(head, ast.Expr)
    _check_text(head.value)
    made: dict[str, ast.AST] = {}
    types: list[ast.AST | str] = []
    for node in body:
        match node:
            case ast.ImportFrom():
                assert node.module in _IMPORTED
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
                assert {ast.unparse(inner).split()[1] for inner in node.body} <= _IMPORTED
                assert all(isinstance(inner, ast.ImportFrom) for inner in node.body)
                continue
            case ast.ClassDef():
                name = node.name
                types += _read_class(node)
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="TypedDict")) as call
            ):
                types += _read_call(name, call)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                types.append(_check_text(node.value))
            case ast.AsyncFunctionDef() | ast.FunctionDef():
                name = node.name
                types += _read_function(node)
            case _:
                raise AssertionError(ast.dump(node))
        assert name not in made, f"{name} is made twice"
        made[name] = node
    for kind in types:
        _check_type(ast.parse(kind, mode="eval").body if isinstance(kind, str) else kind, set(made))
    return made


def _read_class(node: ast.ClassDef) -> list[ast.AST | str]:
    assert [ast.unparse(base) for base in node.bases] == ["TypedDict"]
    assert not node.decorator_list
    assert not node.keywords
    types: list[ast.AST | str] = []
    for field in node.body:
        assert isinstance(field, ast.AnnAssign)
        assert field.value is None
        types.append(field.annotation)
    return types


def _read_call(name: str, call: ast.Call) -> list[ast.AST | str]:
    title, fields = call.args
    assert _check_text(title) == name
    assert isinstance(fields, ast.Dict)
    for key in fields.keys:
        _check_text(key)
    return [_check_text(value) for value in fields.values]


def _read_function(node: ast.AsyncFunctionDef | ast.FunctionDef) -> list[ast.AST | str]:
    assert not node.decorator_list
    assert all(isinstance(default, ast.Constant) and default.value is None for default in node.args.defaults)
    assert all(isinstance(default, ast.Constant) for default in node.args.kw_defaults)
    body = list(node.body)
    if isinstance(body[0], ast.Expr):
        _check_text(body.pop(0).value)  # type: ignore[attr-defined]
    calls, returns = body
    assert isinstance(calls, ast.Assign)
    call = calls.value.value if isinstance(calls.value, ast.Await) else calls.value
    assert isinstance(call, ast.Call)
    assert ast.unparse(call.func) == "mesh.call"
    _check_text(call.args[0])
    assert ast.unparse(call.args[1]) in ("arguments", "{}")
    for option in call.keywords:
        assert isinstance(option.value, ast.Name | ast.Constant)
    assert isinstance(returns, ast.Return)
    assert isinstance(returns.value, ast.Call)
    assert ast.unparse(returns.value.func) == "cast"
    result = _check_text(returns.value.args[0])
    assert node.returns is not None
    assert ast.unparse(ast.parse(result, mode="eval")) == ast.unparse(node.returns)
    types = [argument.annotation for argument in (*node.args.posonlyargs[1:], *node.args.kwonlyargs)]
    if node.args.kwarg is not None:
        types.append(node.args.kwarg.annotation)
    return [result, *(kind for kind in types if kind is not None)]


def _check_text(node: ast.AST | None) -> str:
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, str)
    return node.value


def _check_type(node: ast.AST, made: set[str]) -> None:
    match node:
        case ast.Name(id=name):
            assert name in _PLAIN or name in made, name
        case ast.Constant(value=None):
            pass
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            _check_type(left, made)
            _check_type(right, made)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            for value in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                ast.literal_eval(value)
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            assert name in _GENERIC, name
            for kind in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                _check_type(kind, made)
        case _:
            raise AssertionError(ast.dump(node))
