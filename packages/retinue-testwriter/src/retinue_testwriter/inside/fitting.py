"""Selects the strategies that a target accepts, and those for instances of the module's classes."""

from __future__ import annotations

import itertools
import time
from typing import Any

import observing  # type: ignore[import-not-found]
from calling import Case, TargetCaller  # type: ignore[import-not-found]

FIT_DRAWS = 20
FINAL_DRAWS = 120
GOOD_SCORE = 0.6
SLOW_ENOUGH = 2


def fit(caller: TargetCaller, target: dict[str, Any], function: Any) -> tuple[dict[str, str], list[Case]]:
    """Choose a strategy for each parameter: (chosen sources, cases seen on the way)."""
    chosen = {param["name"]: param["candidates"][0] for param in target["params"]}
    cases: list[Case] = []
    alike = [p for p in target["params"] if p["default"] is None and len(p["candidates"]) > 1]
    alike = [p for p in alike if p["candidates"] == alike[0]["candidates"]]
    if len(alike) > 1 and score(sample(caller, target, function, chosen, {})) < GOOD_SCORE:
        # parameters of one type often need the same kind of value, such as lists of equal length
        shared = alike[0]["candidates"]
        tried = [sample(caller, target, function, chosen, dict.fromkeys(names(alike), c)) for c in shared]
        best = max(range(len(shared)), key=lambda index: score(tried[index]))
        chosen.update(dict.fromkeys(names(alike), shared[best]))
    started = time.process_time()
    for param in target["params"]:
        if len(param["candidates"]) == 1 or time.process_time() - started > target["budget_s"]:
            continue
        current = sample(caller, target, function, chosen, {param["name"]: chosen[param["name"]]})
        cases += current
        if not param["always"] and score(current) >= GOOD_SCORE:
            continue
        seen = [(chosen[param["name"]], current)]
        for candidate in param["candidates"]:
            if candidate != chosen[param["name"]]:
                seen.append((candidate, sample(caller, target, function, chosen, {param["name"]: candidate})))
                cases += seen[-1][1]
        chosen[param["name"]] = unite(caller, seen, param)
    return chosen, cases


def sample(
    caller: TargetCaller, target: dict[str, Any], function: Any, chosen: dict[str, str], instead: Any
) -> list[Case]:
    """A few calls with default options, except those in ``instead``."""
    drawn = caller.draw({**chosen, **list_defaults(target), **instead}, FIT_DRAWS)
    return run_cases(caller, target, function, drawn)


def run_cases(
    caller: TargetCaller, target: dict[str, Any], function: Any, drawn: list[Any], budget_s: float = 60.0
) -> list[Case]:
    """One call for each draw, until the CPU time is used up or several calls were too slow."""
    cases: list[Case] = []
    started = time.process_time()
    for values in drawn:
        cases.append(caller.run_case(target, function, values))
        slow = sum(case.kind == "slow" for case in cases)
        if slow >= SLOW_ENOUGH or time.process_time() - started > budget_s:
            break
    return cases


def score(cases: list[Any]) -> float:
    """The share of successful calls; a documented exception counts a little."""
    if not cases:
        return -1.0
    worth = {"ok": 1.0, "documented": 0.1, "surprise": 0.0, "slow": -3.0, "refused": -1.0}
    # a strategy of two or three values is not informative
    return sum(worth[case.kind] for case in cases) / max(len(cases), 8)


def unite(caller: TargetCaller, seen: Any, param: Any) -> str:
    """The best candidate, and others that reach further branches."""
    bad = ("slow", "refused")
    usable = [entry for entry in seen if not any(case.kind in bad for case in entry[1])] or seen
    best = max(usable, key=lambda entry: score(entry[1]))
    first = usable[0]
    picked = [best if score(best[1]) - score(first[1]) > 0.25 else first]
    if param["untyped"] or not param["always"]:
        return str(picked[0][0])
    reached = set().union(*(case.features for case in picked[0][1]), frozenset())
    for _ in range(2):
        rest = [e for e in usable if e not in picked and not any(c.kind == "surprise" for c in e[1])]
        if not rest:
            break
        gains = [(len(set().union(*(c.features for c in entry[1])) - reached), entry) for entry in rest]
        gain, entry = max(gains, key=lambda pair: pair[0])
        if gain < 2:
            break
        picked.append(entry)
        reached |= set().union(*(case.features for case in entry[1]))
    return " | ".join(source for source, _cases in picked)


def define_instances(
    caller: TargetCaller, target: dict[str, Any], chosen: dict[str, str], cases: list[Any]
) -> None:
    """A strategy for instances of the class, with arguments that its constructor accepted."""
    good = [case for case in cases if case.kind == "ok"]
    class_source = target["template"].split("(")[0]
    if not good:
        return
    source = None
    safe = chosen if len(good) == len(cases) else find_safe(caller, target)
    if safe is not None:
        arguments = []
        for param in target["params"]:
            keyword = "" if param["kind"] != "keyword" else param["given_name"] + "="
            arguments.append(keyword + safe[param["name"]])
        source = "st.builds(" + ", ".join([class_source, *arguments]) + ")"
    else:
        kept = observing.pick(good, 16)
        if len(target["params"]) == 1:
            values = [case.sources[target["params"][0]["name"]] for case in kept]
            values = list(dict.fromkeys(value for value in values if value is not None))
            source = "st.builds({}, st.sampled_from([{}]))".format(class_source, ", ".join(values))
        else:
            calls = []
            for case in kept[:8]:
                if None in case.sources.values():
                    continue
                parts = []
                for param in target["params"]:
                    keyword = "" if param["kind"] != "keyword" else param["given_name"] + "="
                    parts.append(keyword + "st.just(" + case.sources[param["name"]] + ")")
                calls.append("st.builds(" + ", ".join([class_source, *parts]) + ")")
            source = " | ".join(calls) or None
    if source:
        target["instances"] = source
        caller.names[target["strategy_name"]] = caller.compile_strategy(source)


def find_safe(caller: TargetCaller, target: dict[str, Any]) -> dict[str, str] | None:
    """The first combination of candidates that the constructor always accepts."""
    function = caller.compile_call(target)
    combinations = itertools.product(*(param["candidates"] for param in target["params"]))
    for combination in itertools.islice(combinations, 24):
        chosen = dict(zip(names(target["params"]), combination))  # noqa: B905
        cases = sample(caller, target, function, chosen, chosen)
        if len(cases) < FIT_DRAWS // 2 or any(case.kind != "ok" for case in cases):
            continue
        more = [caller.run_case(target, function, values) for values in caller.draw(chosen, FINAL_DRAWS)]
        if all(case.kind == "ok" for case in more):
            return chosen
    return None


def list_defaults(target: dict[str, Any]) -> dict[str, str]:
    """Strategies that keep every option at its default."""
    return {p["name"]: "st.just(" + p["default"] + ")" for p in target["params"] if p["default"] is not None}


def names(params: list[dict[str, Any]]) -> list[str]:
    return [param["name"] for param in params]
