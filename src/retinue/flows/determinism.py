"""Finds what a workflow's function does between its steps that is not the same when it is begun again.

The check reads the source of the function alone. Functions that it calls, and functions and lambdas inside
it, are left out, because these are what `Run.step` calls. Names are looked up in the function's module, so
``from time import time as clock`` is found as well.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import logging
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from retinue.flows.workflow import CodeWorkflow

_AGAIN = "each time the function is begun"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_PATH_METHODS = frozenset({"read_text", "write_text", "read_bytes", "write_bytes"})
_OUTSIDE = (
    *("requests", "httpx", "aiohttp", "urllib3", "urllib.request", "http.client", "socket"),
    *("subprocess", "shutil", "sqlite3"),
)
_REPEATABLE = frozenset({"random.Random", "random.seed"})
_LOGGING = ("debug", "info", "warning", "error", "exception", "critical", "log")
_MODULES = {"posix": "os", "nt": "os", "_io": "io", "posixpath": "os.path", "ntpath": "os.path"}


@dataclass(frozen=True, slots=True)
class Rule:
    """Calls that do not belong between steps, by their full name or by the beginning of the name."""

    problem: str
    remedy: str
    names: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        return name in self.names or (name.startswith(self.beginnings) and name not in _REPEATABLE)


def _names(module: str, *names: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for name in names)


RULES = (
    Rule(
        f"reads the clock, which differs {_AGAIN}",
        "use await run.now()",
        _names("time", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
        | _names("time", "localtime", "gmtime", "ctime")
        | _names("datetime", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    ),
    Rule(
        f"waits again {_AGAIN}, and holds up all other runs",
        "use await run.sleep(seconds)",
        frozenset({"time.sleep"}),
    ),
    Rule(f"waits again {_AGAIN}", "use await run.sleep(seconds)", frozenset({"asyncio.sleep"})),
    Rule(
        f"gives another value {_AGAIN}",
        "use await run.random(), or move it into a function: await run.step(function)",
        _names("uuid", "uuid1", "uuid4") | {"os.urandom"},
        ("random.", "secrets.", "numpy.random."),
    ),
    Rule(
        "makes steps in another task than the function's, which fails the run",
        "use await run.gather(*steps)",
        _names("asyncio", "gather", "create_task", "ensure_future", "as_completed", "wait", "TaskGroup"),
        ("threading.", "concurrent.futures."),
    ),
    Rule(
        f"cuts off at another point {_AGAIN}",
        "use timeout_s of the step",
        _names("asyncio", "wait_for", "timeout", "timeout_at"),
    ),
    Rule(
        f"reads or changes something outside of the run {_AGAIN}",
        "move it into a function: await run.step(function)",
        _names("builtins", "open", "input")
        | _names("io", "open")
        | _names("asyncio", "to_thread", "create_subprocess_exec", "create_subprocess_shell")
        | _names("os", "getenv", "environ.get", "getpid", "getcwd", "system", "popen", "listdir", "scandir")
        | _names("os", "walk", "stat", "remove", "unlink", "rename", "replace", "mkdir", "makedirs", "rmdir")
        | _names("os.path", "exists", "isfile", "isdir", "getsize", "getmtime")
        | _names("pathlib", *_PATH_METHODS),
        tuple(f"{module}." for module in _OUTSIDE),
    ),
    Rule(
        f"writes again {_AGAIN}",
        "use await run.log(text)",
        frozenset({"builtins.print"}) | _names("logging", *_LOGGING) | _names("logging.Logger", *_LOGGING),
    ),
)
_NOT_AWAITED = Rule("is not awaited, so that nothing happens", "write await before it")
_STEPS = ("call", "elicit", "gather", "now", "race", "random", "receive", "save", "sleep", "step", "think")
_AWAITED = frozenset((*_STEPS, "log", "patched", "workflow"))
"""The methods of a run that do nothing until they are awaited."""

_OF_SETS = Rule("has another order in each process", "use sorted(…)", _names("builtins", "set", "frozenset"))


@dataclass(frozen=True, slots=True)
class Hint:
    """Code that does not belong between steps, at a line of a file; ``column`` counts from 1."""

    file: str
    line: int
    column: int
    subject: str
    problem: str
    remedy: str

    @property
    def message(self) -> str:
        return f"{self.subject} {self.problem}"


def find_hints(workflow: CodeWorkflow) -> list[Hint]:
    """The code that does not belong between the steps of a workflow; nothing without a source."""
    function = inspect.unwrap(workflow.function)
    try:
        lines, first = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(lines))
        (node,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return []
    if not isinstance(node, ast.AsyncFunctionDef):
        return []
    names = _Names(node, _list_globals(function))
    indent = len(lines[0]) - len(lines[0].lstrip())

    def make_hint(place: ast.expr, subject: str, rule: Rule) -> Hint:
        line, column = first + place.lineno - 1, place.col_offset + indent + 1
        return Hint(function.__code__.co_filename, line, column, subject, rule.problem, rule.remedy)

    hints = []
    for part in _iterate_parts(node):
        if isinstance(part, ast.Call):
            name = names.find(part.func)
            rule = None if name is None else next((rule for rule in RULES if rule.covers(name)), None)
            if rule is not None:
                called = ast.get_source_segment(source, part.func) or ast.unparse(part.func)
                hints.append(make_hint(part, f"{called}()", rule))
        elif isinstance(part, ast.Expr) and _makes_step(part.value, workflow.signature.context_name):
            called = ast.get_source_segment(source, part.value) or ast.unparse(part.value)
            hints.append(make_hint(part.value, f"{called.partition('(')[0]}()", _NOT_AWAITED))
        elif isinstance(part, ast.For | ast.comprehension) and names.is_set(part.iter):
            hints.append(make_hint(part.iter, "a set", _OF_SETS))
    return hints


def _makes_step(node: ast.expr, run: str | None) -> bool:
    """Whether an expression calls a method of the run that has to be awaited."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
        owner = owner.func.value  # run.options(…).step(…)
    return isinstance(owner, ast.Name) and owner.id == run and node.func.attr in _AWAITED


def _list_globals(function: Any) -> Mapping[str, Any]:
    """The variables of the module, and of functions around it, that a function sees."""
    return {**function.__globals__, **inspect.getclosurevars(function).nonlocals}


def _iterate_parts(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The nodes of a body, in the order of the text, without those of functions inside."""
    pending: list[ast.AST] = list(reversed(function.body))
    while pending:
        node = pending.pop()
        if isinstance(node, _FUNCTIONS):
            continue
        yield node
        pending += reversed(list(ast.iter_child_nodes(node)))


class _Names:
    """Looks up the full names of what a function calls."""

    def __init__(self, function: ast.AsyncFunctionDef, known: Mapping[str, Any]) -> None:
        self._known = known
        self._imported: dict[str, str] = {}
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self._own = {argument.arg for argument in every}
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._imported[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._own.add(node.id)

    def find(self, node: ast.expr) -> str | None:
        """The full name, such as ``datetime.datetime.now``; None where it is not known."""
        if isinstance(node, ast.Attribute):
            inner = self.find(node.value)
            if inner is not None:
                return f"{inner}.{node.attr}"
            return f"pathlib.{node.attr}" if node.attr in _PATH_METHODS else None
        if not isinstance(node, ast.Name):
            return None
        if node.id in self._imported:
            return self._imported[node.id]
        if node.id in self._own:
            return None
        if node.id in self._known:
            return _name_of(self._known[node.id])
        return f"builtins.{node.id}" if hasattr(builtins, node.id) else None

    def is_set(self, node: ast.expr) -> bool:
        """Whether an expression is a set literal, a set comprehension or a call of ``set``."""
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        return isinstance(node, ast.Call) and _OF_SETS.covers(self.find(node.func) or "")


def _name_of(value: Any) -> str | None:
    """The full name of a module, a class or a function of a module; that of its class for a logger."""
    if isinstance(value, ModuleType):
        return _MODULES.get(value.__name__, value.__name__)
    if isinstance(value, logging.Logger):
        return "logging.Logger"
    name = getattr(value, "__qualname__", None)
    owner = getattr(value, "__self__", None)
    if name is None:
        return None
    if owner is not None and not isinstance(owner, ModuleType | type):
        # such as random.random, a method of a hidden object of its module
        module, name = type(owner).__module__, value.__name__
    else:
        module = value.__module__
    return f"{_MODULES.get(str(module), module)}.{name}"
