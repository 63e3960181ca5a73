"""Calls the targets of a module with generated arguments and records the outcomes.

Run as ``python -I probe.py REQUEST RESULTS`` (two files) in a limited subprocess with Hypothesis and pytest.
Results are JSON lines, each written before the next target starts, so a crash or an endless loop loses one
target only. The result of a target: accepted strategies, return types, exceptions, examples that cover as
many branches as were found, and properties that always held.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from calling import TargetCaller, TooSlow  # type: ignore[import-not-found]
from fitting import FINAL_DRAWS, define_instances, fit, list_defaults, run_cases  # type: ignore[import-not-found]
from recording import describe  # type: ignore[import-not-found]

sys.path.pop(0)  # a module under test may have the name of a script in this folder

ITERATOR_CAP = 50


def probe_target(caller: TargetCaller, target: dict[str, Any]) -> dict[str, Any]:
    """Probe one target; returns the result that the parent reads."""
    target["wrappers"] = ["asyncio.run({call})"] if target["is_async"] else []
    function = caller.compile_call(target)
    with contextlib.suppress(TooSlow):
        first = caller.draw({p["name"]: p["candidates"][0] for p in target["params"]}, 5)
        for values in first:
            result, error, _features = caller.call(function, values, watched=False)
            if isinstance(error, TooSlow):
                break
            if error is None and hasattr(result, "__next__"):
                target["wrappers"].append(f"list(itertools.islice({{call}}, {ITERATOR_CAP}))")
                function = caller.compile_call(target)
                break
    chosen, cases = fit(caller, target, function)
    drawn = caller.draw(chosen, FINAL_DRAWS)
    optional = list_defaults(target)
    if optional:
        # most options at their defaults, as in typical calls
        plain = caller.draw({**chosen, **optional}, FINAL_DRAWS // 2)
        drawn = [case for pair in itertools.zip_longest(plain, drawn) for case in pair if case is not None]
    final = run_cases(caller, target, function, drawn, target["budget_s"])
    bad = ("refused", "slow")
    if optional and any(case.kind in bad for case in final):
        # the defaults may be the only arguments that fail
        again = run_cases(caller, target, function, caller.draw(chosen, FINAL_DRAWS), target["budget_s"])
        final = final if any(case.kind in bad for case in again) else again
    if target["builds"]:
        define_instances(caller, target, chosen, final)
    findings: dict[str, Any] = describe(caller, target, function, chosen, cases, final)
    return findings


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with Path(sys.argv[2]).open("a", encoding="utf-8") as results:

        def tell(findings: dict[str, Any]) -> None:
            results.write(json.dumps(findings) + "\n")
            results.flush()

        try:
            caller = TargetCaller(request)
        except BaseException as error:  # noqa: BLE001  (importing runs the module's own code)
            tell({"event": "unloadable", "why": type(error).__name__ + ": " + str(error)[:300]})
            return
        for target in request["targets"]:
            tell({"event": "start", "target": target["name"]})
            try:
                missing = [
                    p["name"] for p in target["params"] if p["needs"] and p["needs"] not in caller.names
                ]
                if missing:
                    tell({"event": "unmade", "target": target["name"], "parameters": missing})
                    continue
                tell(probe_target(caller, target))
            except (Exception, TooSlow) as error:  # noqa: BLE001  (one odd target must not end the others)
                why = type(error).__name__ + ": " + str(error)[:300]
                tell({"event": "failed", "target": target["name"], "why": why})
        tell({"event": "end"})


if __name__ == "__main__":
    main()
