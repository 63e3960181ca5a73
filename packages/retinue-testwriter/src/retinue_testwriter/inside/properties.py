"""Finds statements about arguments and results that held in every call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calling import TargetCaller, copy_values  # type: ignore[import-not-found]

CHALLENGED = 40
HOLDS_AFTER = 60


def relation_holds(
    caller: TargetCaller,
    relation: Any,
    target: dict[str, Any],
    function: Any,
    good: list[Any],
    findings: dict[str, Any],
) -> bool:
    """Whether a property held for every successful call, and for enough calls."""
    if findings["changes"]:
        return False
    variables = ["result", *good[0].values]
    try:
        check = eval("lambda " + ", ".join(variables) + ": " + relation["predicate"], caller.names)  # noqa: S307
    except SyntaxError:
        return False
    results = set()
    for case in good:
        values = copy_values(case.values)
        verdict, error, _features = caller.call(check, {"result": case.result, **values}, watched=False)
        if error is not None or not verdict:
            return False
        results.add(repr(case.result)[:200])
    return len(results) >= 5 and survives(caller, relation, target, function, good)


def survives(
    caller: TargetCaller, relation: Any, target: dict[str, Any], function: Any, good: list[Any]
) -> bool:
    """Whether the property also holds for arguments returned by other functions of the module."""
    for challenge in relation["challenges"]:
        variables = list(good[0].values)
        source = "lambda " + ", ".join(variables) + ": " + challenge
        make = eval(source, caller.names)  # noqa: S307
        check = eval("lambda result, " + ", ".join(variables) + ": " + relation["predicate"], caller.names)  # noqa: S307
        for case in good[:CHALLENGED]:
            made, error, _features = caller.call(make, copy_values(case.values), watched=False)
            first = variables[0]
            if error is not None or type(made) is not type(case.values[first]):
                continue
            values = {**copy_values(case.values), first: made}
            result, error, _features = caller.call(function, values, watched=False)
            if error is not None:
                continue
            verdict, error, _features = caller.call(check, {"result": result, **values}, watched=False)
            if error is not None or not verdict:
                return False
    return True


def list_invariants(good: list[Any], names: Any) -> list[str]:
    """At most two simple statements about arguments and result that held in every call."""
    if len(good) < HOLDS_AFTER:
        return []
    results = [case.result for case in good]
    if len({repr(result) for result in results}) < 5:
        return []
    held = {}
    for about, source in propose(good[0].values, results):
        if about in held:
            continue
        try:
            check = eval("lambda result, " + ", ".join(good[0].values) + ": " + source, dict(names))  # noqa: S307
            if all(check(case.result, **case.values) for case in good):
                held[about] = source
        except Exception:  # noqa: BLE001, S112  (a statement that cannot be evaluated does not hold)
            continue
    return list(held.values())[:2]


def propose(values: dict[str, Any], results: list[Any]) -> Iterator[tuple[str, str]]:
    """Candidate (subject, statement) pairs for these types; the first that holds for a subject is used."""
    kinds = {type(result) for result in results}
    sized = [name for name, value in values.items() if isinstance(value, (str, bytes, list, tuple))]
    numbers = [n for n, v in values.items() if isinstance(v, int) and not isinstance(v, bool)]
    if kinds == {str}:
        for name in sized:
            yield "length", "len(result) == len(" + name + ")"
            yield "length", "len(result) <= len(" + name + ")"
            yield "content", name + " in result"
            yield "content", "result in " + name
        for name in numbers:
            yield "length", "len(result) <= " + name
        yield "case", "result == result.lower()"
        yield "characters", "result.isascii()"
    elif kinds <= {int, float}:
        if kinds == {int}:
            for name in sized:
                yield "range", "0 <= result <= len(" + name + ")"
        yield "range", "0 <= result <= 1"
        for name in sized:
            yield "range", "min(" + name + ") - 1e-6 <= result <= max(" + name + ") + 1e-6"
        yield "range", "result >= 0"
    elif kinds in ({list}, {tuple}):
        yield from propose_for_sequences(kinds, sized, numbers, results)
    elif kinds in ({set}, {frozenset}):
        for name in sized:
            yield "length", "len(result) <= len(" + name + ")"


def propose_for_sequences(
    kinds: set[type], sized: list[str], numbers: list[str], results: list[Any]
) -> Iterator[tuple[str, str]]:
    if all(isinstance(part, (int, float)) for result in results for part in result):
        yield "range", "all(0 <= part <= 1 for part in result)"
    if all(isinstance(part, str) for result in results for part in result):
        for name in numbers:
            yield "range", "all(len(part) <= " + name + " for part in result)"
    for name in sized:
        yield "length", "len(result) == len(" + name + ")"
        yield "length", "len(result) <= len(" + name + ")"
    if kinds == {list} and sum(len(set(map(repr, result))) > 2 for result in results) > 10:
        yield "order", "result == sorted(result)"
