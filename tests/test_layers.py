"""What import-linter cannot see: sockets, processes and files reached without an import of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "retinue"
TEST_WRITER = ROOT / "packages" / "retinue-testwriter" / "src" / "retinue_testwriter"
OWN_PROCESSES = "inside"
"""A folder of this name holds scripts that only ever run as confined programs of their own."""
PURE = (
    "core",
    "cards",
    "mesh",
    "thinking",
    "authoring",
    "hub",
    "workflows/definitions",
    "workflows/expressions",
    "workflows/interpreter",
    "workflows/runs",
    "web/codec",
    "mcp/codec",
    "oci/codec",
    "openapi/codec",
    "team",
)
FORBIDDEN_CALLS = {
    "open",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "asyncio.open_connection",
    "asyncio.open_unix_connection",
    "asyncio.start_server",
    "asyncio.start_unix_server",
    "os.fork",
    "os.popen",
    "os.system",
    "eval",
    "exec",
}


def _forbidden_calls(source: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in FORBIDDEN_CALLS:
            yield name, node.lineno


@pytest.mark.parametrize(
    "folder", [*(PACKAGE / layer for layer in PURE), TEST_WRITER], ids=lambda path: path.name
)
def test_a_pure_layer_opens_no_file_starts_no_process_and_no_connection(folder: Path) -> None:
    places = list(folder.rglob("*.py"))
    assert places
    found = [
        f"{path.relative_to(folder)}:{line}: {name}"
        for path in places
        if OWN_PROCESSES not in path.parts
        for name, line in _forbidden_calls(path.read_text("utf-8"))
    ]
    assert not found


def test_every_sub_package_init_holds_a_docstring_only() -> None:
    """Except that of the test kit, which is the interface of authors."""
    wrong = []
    for path in PACKAGE.glob("*/**/__init__.py"):
        body = ast.parse(path.read_text("utf-8")).body
        if len(body) != 1 or not isinstance(body[0], ast.Expr):
            wrong.append(str(path.relative_to(PACKAGE)))
    assert not [name for name in wrong if name not in ("cli/__init__.py", "testing/__init__.py")]


def test_a_forbidden_call_is_seen_wherever_it_stands() -> None:
    assert list(_forbidden_calls("async def f():\n    await asyncio.open_connection('h', 1)")) == [
        ("asyncio.open_connection", 2)
    ]
