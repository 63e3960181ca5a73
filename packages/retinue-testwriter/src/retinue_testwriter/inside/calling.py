"""Calls targets with values drawn from strategies, one call at a time, under the guard and a time limit."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import copy
import datetime
import decimal
import fractions
import io
import itertools
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import loading  # type: ignore[import-not-found]
import observing  # type: ignore[import-not-found]
import pytest
from calls import write_call, write_value  # type: ignore[import-not-found]
from guard import Guard, Refused  # type: ignore[import-not-found]
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

# CPU time gives the same results on a busy machine; the wall-clock limit catches a call that sleeps.
CALL_LIMIT_S = 1.0
CALL_WALL_LIMIT_S = 8.0
DRAW_LIMIT_S = 6.0
SLOW_S = 0.5


class TooSlow(BaseException):
    """A call exceeded its time limit; not an Exception, so that the called code does not catch it."""


def ring(_number: Any, _frame: Any) -> None:
    raise TooSlow


class Terminal:
    """Replaces standard input, which a test must not read: it would block or fail."""

    def __getattr__(self, name: str) -> None:
        raise Refused("reads standard input")


class Builds(ast.NodeTransformer):
    """Makes ``st.builds(X, …)`` record the source of what it builds."""

    def visit_Call(self, node: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "builds":
            name = ast.Constant(ast.unparse(node.args[0]))
            return ast.Call(ast.Name("_builds", ast.Load()), [name, *node.args], node.keywords)
        return node


class Case:
    """One call: its arguments as source, and its outcome."""

    __slots__ = ("error", "features", "kind", "result", "sources", "values")

    def __init__(self, values: dict[str, Any], sources: dict[str, Any]) -> None:
        self.values = values
        self.sources = sources
        self.kind = "ok"
        self.result: Any = None
        self.error: BaseException | None = None
        self.features: frozenset[Any] = frozenset()


class TargetCaller:
    """Calls the module under test; ``names`` is the namespace of its strategies and calls."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        # the search path of the module's own interpreter, after ours
        sys.path += [entry for entry in request["appended"] if entry not in sys.path]
        self.guard = Guard()
        self.module = loading.load(request["module"], request["root"], request["source"])
        self.watcher = observing.Watcher(request["source"])
        self.made: dict[int, tuple[Any, str | None]] = {}
        self.constructors = {t["template"].split("(")[0]: t for t in request["constructors"]}
        self.names = {
            "st": st,
            "_builds": self._builds,
            "asyncio": asyncio,
            "datetime": datetime,
            "decimal": decimal,
            "fractions": fractions,
            "io": io,
            "itertools": itertools,
            "pathlib": pathlib,
            "pytest": pytest,
            request["module"].split(".")[0]: sys.modules[request["module"].split(".")[0]],
        }
        self.names["plain_data"] = eval(request["plain_data"], dict(self.names))  # noqa: S307
        for name, source in request["definitions"].items():
            self.names[name] = self.compile_strategy(source)
        signal.signal(signal.SIGALRM, ring)
        signal.signal(signal.SIGPROF, ring)
        sys.stdin = Terminal()

    def _builds(self, name: str, build: Any, *args: Any, **kwargs: Any) -> Any:
        def make(*values: dict[str, Any], **named: Any) -> Any:
            # arguments may be built objects or streams, which a call consumes
            parts = [write_value(value, self.made) for value in values]
            options = {key: write_value(value, self.made) for key, value in named.items()}
            built = build(*values, **named)
            if None not in parts and None not in options.values():
                self.made[id(built)] = (built, self.write_build(name, parts, options))
            return built

        return st.builds(make, *args, **kwargs)

    def write_build(self, name: str, parts: list[Any], options: Any) -> str | None:
        """The source of a built object; for a class of the module without default arguments."""
        target = self.constructors.get(name)
        if target is None:
            return name + "(" + ", ".join([*parts, *(k + "=" + v for k, v in options.items())]) + ")"
        sources = {p["name"]: options.get(p["given_name"]) for p in target["params"]}
        sources.update(zip([p["name"] for p in target["params"]], parts))  # noqa: B905
        written: str | None = write_call(target, sources, True)
        return written

    def compile_strategy(self, source: str) -> Any:
        tree = ast.fix_missing_locations(Builds().visit(ast.parse(source.strip(), mode="eval")))
        return eval(compile(tree, "<strategy>", "eval"), self.names)  # noqa: S307

    def draw(self, chosen: dict[str, str], count: int) -> list[dict[str, Any]]:
        """Values for the parameters, the same in each run of the probe."""
        drawn = []
        by_name = {name: self.compile_strategy(source) for name, source in chosen.items()}

        @settings(
            max_examples=count,
            database=None,
            derandomize=True,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(st.fixed_dictionaries(by_name))
        def collect(values: dict[str, Any]) -> None:
            drawn.append(values)

        with contextlib.suppress(HypothesisException, TooSlow):
            signal.setitimer(signal.ITIMER_PROF, DRAW_LIMIT_S)
            try:
                collect()
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        return drawn

    def call(
        self, function: Any, values: dict[str, Any], watched: bool = True
    ) -> tuple[Any, BaseException | None, frozenset[Any]]:
        """Run one call under guard, time limit and observation: (result, error or None, features)."""
        result: Any = None
        error: BaseException | None = None
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.guard.raised = True
            signal.setitimer(signal.ITIMER_PROF, CALL_LIMIT_S)
            signal.setitimer(signal.ITIMER_REAL, CALL_WALL_LIMIT_S)
            try:
                if watched:
                    self.watcher.start()
                result = function(**values)
            except BaseException as raised:  # noqa: BLE001  (whatever it raises is the finding)
                error = raised
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.watcher.stop()
                self.guard.raised = False
        if self.guard.refusal:  # the function may have handled the refusal
            error = Refused(self.guard.refusal)
        return result, error, self.watcher.take() if watched else frozenset()

    def run_case(self, target: dict[str, Any], function: Any, values: dict[str, Any]) -> Case:
        sources = {name: write_value(value, self.made) for name, value in values.items()}
        case = Case(copy_values(values), sources)
        started = time.process_time()
        case.result, case.error, arcs = self.call(function, values)
        took = time.process_time() - started
        if isinstance(case.error, TooSlow) or (case.error is None and took > SLOW_S):
            case.kind = "slow"
        elif isinstance(case.error, Refused):
            case.kind = "refused"
        elif isinstance(case.error, (KeyboardInterrupt, MemoryError)):
            case.kind = "slow"
        elif case.error is not None:
            names = {base.__name__ for base in type(case.error).__mro__}
            case.kind = "documented" if names & set(target["raises"]) else "surprise"
        case.features = arcs | observing.describe_outcome(case, bool(arcs))
        return case

    def compile_call(self, target: dict[str, Any]) -> Callable[..., Any]:
        variables = {param["name"]: param["name"] for param in target["params"]}
        call = write_call(target, variables)
        function: Callable[..., Any] = eval("lambda " + ", ".join(variables) + ": " + str(call), self.names)  # noqa: S307
        return function


def copy_values(values: dict[str, Any]) -> dict[str, Any]:
    """Copies of the arguments; those that cannot be copied are passed as they are."""
    copied = {}
    for name, value in values.items():
        try:
            copied[name] = copy.deepcopy(value)
        except Exception:  # noqa: BLE001  (a value of the code under probe may refuse in any way)
            copied[name] = value
    return copied
