"""Summarises the calls of a target: results, exceptions, repeatability, changed arguments."""

from __future__ import annotations

from typing import Any

import observing  # type: ignore[import-not-found]
from calling import Caller, copy_values  # type: ignore[import-not-found]
from calls import write_call  # type: ignore[import-not-found]
from pinning import name_class, write_pins  # type: ignore[import-not-found]
from properties import list_invariants, relation_holds  # type: ignore[import-not-found]


def describe(
    caller: Caller,
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
    found = {
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
        return found
    found["types"] = list_types(caller, good)
    check_repeats(caller, found, function, good)
    if found["stable"]:
        pool = [case for case in cases + final if case.kind in ("ok", "documented")]
        found["pins"] = write_pins(caller, target, found, pool)
        found["holds"] = list_invariants(every, caller.names) if not found["changes"] else []
    for relation in target["relations"]:
        known = [held["name"] for held in found["relations"]]
        if relation["name"] not in known and relation_holds(caller, relation, target, function, every, found):
            found["relations"].append(relation)
    return found


def list_errors(caller: Caller, target: dict[str, Any], cases: list[Any], kind: Any) -> list[dict[str, Any]]:
    """One example of each exception type."""
    found = {}
    for case in cases:
        if case.kind == kind and type(case.error).__name__ not in found:
            name, needed = name_class(caller, type(case.error))
            call = write_call(target, case.sources, True) if None not in case.sources.values() else None
            found[type(case.error).__name__] = {
                "exception": name or "Exception",
                "import": needed,
                "call": (call or "")[:300],
                "message": str(case.error)[:200],
            }
    return list(found.values())


def list_types(caller: Caller, good: list[Any]) -> list[dict[str, Any]]:
    kinds = list(dict.fromkeys(type(case.result) for case in good))
    if len(kinds) > 4:
        return []
    found = []
    for kind in kinds:
        name, needed = ("None", "") if kind is type(None) else name_class(caller, kind)
        if name is None:
            return []
        found.append({"name": name, "import": needed})
    return found


def check_repeats(caller: Caller, found: dict[str, Any], function: Any, good: list[Any]) -> None:
    """Whether the same arguments give the same result and are not changed."""
    changed = set()
    for case in good[:60]:
        before, again = copy_values(case.values), copy_values(case.values)
        result, error, _features = caller.call(function, again, watched=False)
        if error is not None or not observing.same(result, case.result):
            found["stable"] = found["stable"] and not observing.is_plain(case.result)
            found["comparable"] = False
            continue
        twice, error, _features = caller.call(function, again, watched=False)
        if error is not None or not observing.equal(twice, result):
            found["comparable"] = False
        for name, value in again.items():
            if isinstance(value, (list, dict, set, bytearray)) and not observing.same(value, before[name]):
                changed.add(name)
    found["changes"] = sorted(changed)
