"""Writes assertions on recorded results and keeps those that pass."""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

import observing  # type: ignore[import-not-found]
from calling import TargetCaller, copy_values  # type: ignore[import-not-found]
from calls import write_call, write_value  # type: ignore[import-not-found]


def write_pins(
    caller: TargetCaller, target: dict[str, Any], findings: dict[str, Any], pool: Any
) -> list[dict[str, Any]]:
    """Writes assertions on recorded results and keeps those that pass."""
    pins = []
    written = [case for case in pool if None not in case.sources.values()]
    if target["template"].startswith("hash("):
        return []  # differs between processes
    refusals = 0
    seen = set()
    for case in observing.pick(written, 40, by_result=not findings["changes"]):
        call = write_call(target, case.sources, True)
        if call is None or call in seen or len(call) > 240:
            continue
        seen.add(call)
        if case.kind == "documented":
            name, needed = name_class(caller, type(case.error))
            if refusals < 3 and name and try_refusal(caller, name, call):
                refusals += 1
                pins.append({"raises": name, "import": needed, "call": call})
            continue
        lines = write_assertion(caller, target, findings, case, call)
        if lines and try_lines(caller, lines):
            pins.append({"lines": lines})
        if len(pins) >= target["pin_cap"]:
            break
    return pins


def write_assertion(
    caller: TargetCaller, target: dict[str, Any], findings: dict[str, Any], case: Any, call: str
) -> list[str] | None:
    if findings["changes"]:
        return write_changes(caller, target, findings, case)
    expected = write_value(case.result, caller.made)
    if not target["template"].endswith(")"):
        call = "(" + call + ")"  # an operator or an attribute: comparisons would chain
    if expected in ("None", "True", "False"):
        return ["assert " + call + " is " + expected]
    if expected is not None:
        if len(expected) > 240:
            return None
        if observing.is_inexact(case.result):
            return ["assert " + call + " == pytest.approx(" + expected + ", nan_ok=True)"]
        return ["assert " + call + " == " + expected]
    shown = repr(case.result)
    if " at 0x" in shown or "object at" in shown or len(shown) > 160:
        return None
    if isinstance(case.result, (types.FunctionType, dict)):
        return None
    return ["assert repr(" + call + ") == " + repr(shown)]


def write_changes(
    caller: TargetCaller, target: dict[str, Any], findings: dict[str, Any], case: Any
) -> list[str] | None:
    after = copy_values(case.values)
    function = caller.compile_call(target)
    _result, error, _features = caller.call(function, after, watched=False)
    if error is not None:
        return None
    sources = dict(case.sources)
    lines = []
    for name in findings["changes"]:
        lines.append(name + " = " + sources[name])
        sources[name] = name
    call = write_call(target, sources, True)
    if call is None:
        return None
    lines.append(call)
    for name in findings["changes"]:
        expected = write_value(after[name], caller.made)
        if expected is None:
            return None
        lines.append("assert " + name + " == " + expected)
    return lines


def try_lines(caller: TargetCaller, lines: list[str]) -> bool:
    names = dict(caller.names)
    _result, error, _features = caller.call(
        lambda: exec("\n".join(lines), names),  # noqa: S102
        {},
        watched=False,
    )
    return error is None


def try_refusal(caller: TargetCaller, name: str, call: str) -> bool:
    _result, error, _features = caller.call(
        lambda: eval(call, dict(caller.names)),  # noqa: S307
        {},
        watched=False,
    )
    return isinstance(error, Exception) and bool(name_class(caller, type(error))[0] == name)


def name_class(caller: TargetCaller, kind: type) -> tuple[str | None, str]:
    """How to write a class in the test file: (source, module to import or "")."""
    if kind.__module__ == "builtins":
        return (kind.__name__, "") if hasattr(builtins, kind.__name__) else (None, "")
    if getattr(caller.module, kind.__name__, None) is kind:
        return caller.request["module"] + "." + kind.__name__, ""
    owner = sys.modules.get(str(kind.__module__))
    if owner is not None and "." not in kind.__qualname__ and getattr(owner, kind.__name__, None) is kind:
        return kind.__module__ + "." + kind.__name__, kind.__module__
    return None, ""
