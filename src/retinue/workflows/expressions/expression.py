"""Compiles and evaluates expressions of a workflow: CEL behind one class, with caps.

CEL ends by design, but its engine here (cel-expr-python) has no bound on strings that double inside macros,
its ``map`` is quadratic, and a regular expression costs its size times the text. So the source, the input and
the result are capped (`caps`), and an expression with a macro or a pattern runs in another process under
limits of time and memory (`isolated`).

``loop`` is a reserved word of CEL. It is handed over as ``l00p``: of the same length, so that the
positions in the engine's messages stay true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from retinue.core.errors import ExpressionError
from retinue.workflows.expressions.caps import (
    MAX_HERE_BYTES,
    MAX_MACRO_LEVELS,
    MAX_RESULT_BYTES,
    MAX_RESULT_VALUES,
    MAX_SOURCE_BYTES,
    Shape,
    check_data,
    pick_data,
    read_shape,
    reads_much,
)
from retinue.workflows.expressions.isolated import evaluate_isolated
from retinue.workflows.expressions.lexer import ExpressionReference, iterate_tokens
from retinue.workflows.expressions.plain_words import say_plainly

if TYPE_CHECKING:
    from cel_expr_python import cel  # type: ignore[import-untyped]  # it ships stubs without a marker

_INT64 = range(-(2**63), 2**63)
_LOOP_NAME = "l00p"
_ABSENT_KEY = re.compile(r'Key not found in map : "(?P<key>.*)"$', re.DOTALL)


class ExpressionSyntaxError(ValueError):
    """An expression that cannot be compiled; the loader adds file and line to it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class Expression:
    """One compiled expression; immutable, shared between runs.

    Raises ExpressionSyntaxError for a source that is too long, nests macros too deeply, or does not
    compile.
    """

    __slots__ = ("_program", "shape", "source")

    def __init__(self, source: str) -> None:
        self.source = source.strip()
        self.shape = _check_caps(self.source)
        self._program = _compile(self.source)

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """The value as JSON; ``variables`` holds ``input``, ``steps`` and ``loop`` as JSON values.

        A map that the expression builds comes back with sorted keys: the engine's own order
        changes from process to process, and a run must not.

        Blocks while an expression that `takes_long` runs in its process. Raises ExpressionError.
        """
        if self.shape.path is not None:
            # Handed on as it is: a value that only passes keeps the order of its keys.
            return self._follow(self.shape.path, variables)
        size = check_data(self.source, self.shape, variables)
        picked = pick_data(self.shape, variables)
        if self.shape.is_costly or size > MAX_HERE_BYTES:
            return evaluate_isolated(self.source, picked)
        return self.evaluate_here(picked)

    def takes_long(self, variables: Mapping[str, Any]) -> bool:
        """Whether `evaluate` would block for more than some milliseconds."""
        if self.shape.path is not None:
            return False
        return self.shape.is_costly or reads_much(self.shape, variables)

    def evaluate_here(self, variables: Mapping[str, Any]) -> Any:
        """As `evaluate`, in this process, of variables that were checked."""
        data = {"input": variables["input"], "steps": variables["steps"], _LOOP_NAME: variables["loop"]}
        try:
            value = self._program.eval(data=data)
            if value.type() == _open_engine().error:
                raise self._explain(str(value.plain_value()))
            return _Reader(self.source).read(value)
        except RuntimeError as error:
            raise self._explain(str(error)) from None

    def holds(self, variables: Mapping[str, Any]) -> bool:
        """The value of a condition; raises ExpressionError unless it is true or false."""
        return self.as_condition(self.evaluate(variables))

    def as_condition(self, value: Any) -> bool:
        """A value of this expression as a condition; raises ExpressionError unless it is true or false."""
        if not isinstance(value, bool):
            raise ExpressionError(
                self.source,
                f"gives {_name_type(value)}, not true or false",
                remedy="compare it with something",
            )
        return value

    def _follow(self, path: ExpressionReference, variables: Mapping[str, Any]) -> Any:
        value = variables[path.root]
        for key in path.keys:
            if not isinstance(value, Mapping):
                raise ExpressionError(self.source, f"{_name_type(value)} has no key {key!r}")
            if key not in value:
                raise self._absent(key)
            value = value[key]
        if type(value) is int and value not in _INT64:
            raise self._too_large_integer()
        return value

    def _explain(self, message: str) -> ExpressionError:
        if absent := _ABSENT_KEY.search(message):
            return self._absent(absent["key"])
        if "out of range" in message and "Integer value" in message:
            return self._too_large_integer()
        if "Iteration budget" in message:
            return ExpressionError(
                self.source, "goes through too many items", remedy="leave long lists to a skill"
            )
        if "Applying SELECT to non-message type" in message:
            return ExpressionError(
                self.source, "reads a key of something that is no object", remedy="check its type before"
            )
        words = say_plainly(_strip_code(message), self.source)
        return ExpressionError(self.source, words.problem, remedy=words.remedy)

    def _absent(self, key: str) -> ExpressionError:
        return ExpressionError(
            self.source,
            f"key {key!r} is absent",
            remedy="ask first whether it is there: has(…)",
        )

    def _too_large_integer(self) -> ExpressionError:
        return ExpressionError(self.source, "an integer beyond 64 bits", remedy="carry such a number as text")


@lru_cache(maxsize=4096)
def compile_expression(source: str) -> Expression:
    """The compiled expression of ``source``, kept for the next time; raises ExpressionSyntaxError."""
    return Expression(source)


class _Reader:
    """Turns an engine's value into JSON, and stops at the caps: shared parts count each time."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._values_left = MAX_RESULT_VALUES
        self._bytes_left = MAX_RESULT_BYTES

    def read(self, value: cel.Value) -> Any:
        self._values_left -= 1
        inner = value.value()
        if isinstance(inner, str):
            self._bytes_left -= len(inner)
        if self._values_left < 0 or self._bytes_left < 0:
            raise ExpressionError(self._source, "gives too large a result", remedy="pick the parts you need")
        if inner is None or isinstance(inner, (str, bool)):
            return inner
        if isinstance(inner, int):
            if inner not in _INT64:
                raise ExpressionError(
                    self._source, "an integer beyond 64 bits", remedy="carry such a number as text"
                )
            return inner
        if isinstance(inner, float):
            if not math.isfinite(inner):
                raise ExpressionError(self._source, f"gives {inner}, which JSON cannot carry")
            return inner
        if isinstance(inner, list):
            return [self.read(item) for item in inner]
        if isinstance(inner, dict):
            if any(not isinstance(key, str) for key in inner):
                raise ExpressionError(self._source, "gives a map with keys that are no text")
            return {key: self.read(inner[key]) for key in sorted(inner)}
        raise ExpressionError(
            self._source,
            f"gives a {value.type().name().lower()}, which JSON cannot carry",
            remedy="wrap it in string(…)",
        )


def _check_caps(source: str) -> Shape:
    size = len(source.encode("utf-8", "surrogatepass"))
    if not source:
        raise ExpressionSyntaxError("an empty expression", "write what it shall give")
    if size > MAX_SOURCE_BYTES:
        raise ExpressionSyntaxError(
            f"an expression of {size:,} bytes; at most {MAX_SOURCE_BYTES:,}", "leave such work to a skill"
        )
    shape = read_shape(source)
    if shape.levels > MAX_MACRO_LEVELS:
        raise ExpressionSyntaxError(
            f"expression {shorten(source)!r} nests {shape.levels} macros; at most {MAX_MACRO_LEVELS}",
            "leave such work to a skill",
        )
    return shape


class _Engine:
    """The engine with the variables of every expression."""

    __slots__ = ("environment", "error")

    def __init__(self) -> None:
        # imported here: it takes 8 MB, which a process without workflows does not need
        from cel_expr_python import cel

        variables = dict.fromkeys(("input", "steps", _LOOP_NAME), cel.Type.DYN)
        self.environment = cel.NewEnv(variables=variables)
        self.error = cel.Type.ERROR


@cache
def _open_engine() -> _Engine:
    return _Engine()


def _compile(source: str) -> cel.Expression:
    try:
        return _open_engine().environment.compile(_rename_loop(source))
    except (RuntimeError, UnicodeEncodeError) as error:
        message = _strip_code(str(error)).replace(_LOOP_NAME, "loop")
        problem, remedy = say_plainly(message, source)
        if "_?_:_" in message:
            problem = "both sides of ? : need one type"
            remedy = "wrap one of them in dyn(…)"
        raise ExpressionSyntaxError(f"expression {shorten(source)!r}: {problem}", remedy) from None


def _rename_loop(source: str) -> str:
    parts: list[str] = []
    before = ""
    for token in iterate_tokens(source):
        is_variable = token.kind == "name" and token.text == "loop" and before != "."
        parts.append(_LOOP_NAME if is_variable else token.text)
        if token.kind != "space":
            before = token.text
    return "".join(parts)


def _strip_code(message: str) -> str:
    """The engine's message in one line, without its status codes and its drawing of the source."""
    line = message.strip().splitlines()[0] if message.strip() else "failed"
    line = re.sub(r"^[A-Z_]+: ", "", line)
    line = re.sub(r"^ERROR: <input>:\d+:(\d+): ", r"at character \1: ", line)
    return re.sub(r" \(in container ''\)| \[[A-Z_]+\]$", "", line)


def _name_type(value: Any) -> str:
    names = {
        bool: "a bool",
        int: "an int",
        float: "a double",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def shorten(text: str, limit: int = 80) -> str:
    """A text, shortened for a message."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
