"""Summarises the calls of a target: results, exceptions, repeatability, changed arguments."""

from __future__ import annotations

from typing import Any

import observing  # type: ignore[import-not-found]
from calling import TargetCaller, copy_values  # type: ignore[import-not-found]
from calls import write_call  # type: ignore[import-not-found]
from pinning import name_class, write_pins  # type: ignore[import-not-found]
from properties import list_invariants, relation_holds  # type: ignore[import-not-found]


def describe(
    caller: TargetCaller,
    target: dict[str, Any],
    function: Any,
    chosen: dict[str, str],
    cases: list[Any],
    final: Any,
) -> dict[str, Any]:
    good = [case for case in final if case.kind == "ok"]
    # a property must hold for all calls, not only for arguments that the tests generate
    every = [case for case in final + cases if case.kind == "ok"]
    counts = {kind: sum(case.kind == kind for case in final) for kind in observing.KINDS}
    findings = {
        "event": "done",
        "target": target["name"],
        "chosen": chosen,
        "wrappers": target["wrappers"],
        "instances": target.get("instances"),
        "counts": counts,
        "slow_s": None,
        "why_refused": next((str(c.error) for c in final if c.kind == "refused"), ""),
        "surprises": list_errors(caller, target, final + cases, "surprise"),
        "documented": list_errors(caller, target, final + cases, "documented"),
        "types": [],
        "stable": True,
        "comparable": True,
        "changes": [],
        "pins": [],
        "holds": [],
        "relations": [],
    }
    if not good:
        return findings
    findings["types"] = list_types(caller, good)
    check_repeats(caller, findings, function, good)
    if findings["stable"]:
        pool = [case for case in cases + final if case.kind in ("ok", "documented")]
        findings["pins"] = write_pins(caller, target, findings, pool)
        findings["holds"] = list_invariants(every, caller.names) if not findings["changes"] else []
    for relation in target["relations"]:
        known = [held["name"] for held in findings["relations"]]
        if relation["name"] not in known and relation_holds(
            caller, relation, target, function, every, findings
        ):
            findings["relations"].append(relation)
    return findings


def list_errors(
    caller: TargetCaller, target: dict[str, Any], cases: list[Any], kind: Any
) -> list[dict[str, Any]]:
    """One example of each exception type."""
    errors = {}
    for case in cases:
        if case.kind == kind and type(case.error).__name__ not in errors:
            name, needed = name_class(caller, type(case.error))
            call = write_call(target, case.sources, True) if None not in case.sources.values() else None
            errors[type(case.error).__name__] = {
                "exception": name or "Exception",
                "import": needed,
                "call": (call or "")[:300],
                "message": str(case.error)[:200],
            }
    return list(errors.values())


def list_types(caller: TargetCaller, good: list[Any]) -> list[dict[str, Any]]:
    kinds = list(dict.fromkeys(type(case.result) for case in good))
    if len(kinds) > 4:
        return []
    types = []
    for kind in kinds:
        name, needed = ("None", "") if kind is type(None) else name_class(caller, kind)
        if name is None:
            return []
        types.append({"name": name, "import": needed})
    return types


def check_repeats(caller: TargetCaller, findings: dict[str, Any], function: Any, good: list[Any]) -> None:
    """Whether the same arguments give the same result and are not changed."""
    changed = set()
    for case in good[:60]:
        before, again = copy_values(case.values), copy_values(case.values)
        result, error, _features = caller.call(function, again, watched=False)
        if error is not None or not observing.same(result, case.result):
            findings["stable"] = findings["stable"] and not observing.is_plain(case.result)
            findings["comparable"] = False
            continue
        twice, error, _features = caller.call(function, again, watched=False)
        if error is not None or not observing.equal(twice, result):
            findings["comparable"] = False
        for name, value in again.items():
            if isinstance(value, (list, dict, set, bytearray)) and not observing.same(value, before[name]):
                changed.add(name)
    findings["changes"] = sorted(changed)
