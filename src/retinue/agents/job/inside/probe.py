"""Call the targets of a module with generated arguments and record what happens.

Run as ``python -I probe.py REQUEST RESULTS`` (two files) in a limited subprocess with Hypothesis and pytest.
Results are JSON lines, each written before the next target starts, so that a crash or an endless run
costs one target only. What is learned per target: which strategies it accepts, what it returns and raises,
examples that together walk as many of its branches as could be found, and properties that always held.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import copy
import io
import itertools
import json
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import loading
import observing
from calls import write_call, write_value
from guard import Guard, Refused
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

FIT_DRAWS = 20
FINAL_DRAWS = 120
CALL_LIMIT_S = 1.0
SLOW_S = 0.5
GOOD_SCORE = 0.6
ITERATOR_CAP = 50
CHALLENGED = 40


class TooSlow(BaseException):
    """One call passed its time; not an Exception, so that the code under probe does not swallow it."""


def ring(_number: Any, _frame: Any) -> None:
    raise TooSlow


class Terminal:
    """Stands for standard input: a test that reads it would hang or fail, depending on who runs it."""

    def __getattr__(self, name: str) -> None:
        raise Refused("reads standard input")


class Builds(ast.NodeTransformer):
    """Makes ``st.builds(X, …)`` remember the source of what it builds."""

    def visit_Call(self, node: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "builds":
            name = ast.Constant(ast.unparse(node.args[0]))
            return ast.Call(ast.Name("_builds", ast.Load()), [name, *node.args], node.keywords)
        return node


class Case:
    """One call: its arguments as source, and what came of it."""

    __slots__ = ("error", "features", "kind", "result", "sources", "values")

    def __init__(self, values: dict[str, Any], sources: dict[str, Any]) -> None:
        self.values = values
        self.sources = sources
        self.kind = "ok"
        self.result = None
        self.error = None
        self.features = frozenset()


class Probe:
    def __init__(self, request: dict[str, Any], results: list[Any]) -> None:
        self.request = request
        self.results = results
        sys.path += [entry for entry in request["appended"] if entry not in sys.path]
        self.guard = Guard()
        self.module = loading.load(request["module"], request["root"], request["source"])
        self.watcher = observing.Watcher(request["source"])
        self.made = {}
        self.constructors = {t["template"].split("(")[0]: t for t in request["constructors"]}
        self.names = {
            "st": st,
            "_builds": self._builds,
            "itertools": itertools,
            "asyncio": asyncio,
            "io": io,
            request["module"].split(".")[0]: sys.modules[request["module"].split(".")[0]],
        }
        for name in ("datetime", "pathlib", "decimal", "fractions"):
            self.names.setdefault(name, __import__(name))
        self.names["pytest"] = __import__("pytest")
        self.names["plain_data"] = eval(request["plain_data"], dict(self.names))  # noqa: S307
        for name, source in request["definitions"].items():
            self.names[name] = self.compile_strategy(source)
        signal.signal(signal.SIGALRM, ring)
        sys.stdin = Terminal()

    def _builds(self, name: str, build: Any, *args: Any, **kwargs: Any) -> Any:
        def make(*values: dict[str, Any], **named: Any) -> Any:
            # Arguments may be built objects themselves, or streams that are spent by use.
            parts = [write_value(value, self.made) for value in values]
            options = {key: write_value(value, self.made) for key, value in named.items()}
            built = build(*values, **named)
            if None not in parts and None not in options.values():
                self.made[id(built)] = (built, self.write_build(name, parts, options))
            return built

        return st.builds(make, *args, **kwargs)

    def write_build(self, name: str, parts: list[Any], options: Any) -> str | None:
        """The source of a built object; for a class of the module without the arguments that are defaults."""
        target = self.constructors.get(name)
        if target is None:
            return name + "(" + ", ".join([*parts, *(k + "=" + v for k, v in options.items())]) + ")"
        sources = {p["name"]: options.get(p["given_name"]) for p in target["params"]}
        sources.update(zip([p["name"] for p in target["params"]], parts))  # noqa: B905
        return write_call(target, sources, True)

    def compile_strategy(self, source: str) -> Any:
        tree = ast.fix_missing_locations(Builds().visit(ast.parse(source.strip(), mode="eval")))
        return eval(compile(tree, "<strategy>", "eval"), self.names)  # noqa: S307

    def draw(self, chosen: dict[str, str], count: int) -> list[dict[str, Any]]:
        """Values for the parameters, the same ones each time the probe runs."""
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
            signal.setitimer(signal.ITIMER_REAL, 4)
            try:
                collect()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        return drawn

    def call(
        self, function: Any, values: dict[str, Any], watched: bool = True
    ) -> tuple[Any, BaseException | None, frozenset[Any]]:
        """Run one call under guard, time limit and observation: (result, error or None, features)."""
        result, error = None, None
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.guard.raised = True
            signal.setitimer(signal.ITIMER_REAL, CALL_LIMIT_S)
            try:
                if watched:
                    self.watcher.start()
                result = function(**values)
            except BaseException as raised:  # noqa: BLE001  (whatever it raises is the finding)
                error = raised
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.watcher.stop()
                self.guard.raised = False
        return result, error, self.watcher.take() if watched else frozenset()

    def run_case(self, target: dict[str, Any], function: Any, values: dict[str, Any]) -> Case:
        sources = {name: write_value(value, self.made) for name, value in values.items()}
        case = Case(copy_values(values), sources)
        started = time.monotonic()
        case.result, case.error, arcs = self.call(function, values)
        took = time.monotonic() - started
        if isinstance(case.error, TooSlow) or (case.error is None and took > SLOW_S):
            case.kind = "slow"
        elif isinstance(case.error, Refused):
            case.kind = "refused"
        elif isinstance(case.error, (KeyboardInterrupt, MemoryError)):
            case.kind = "slow"
        elif case.error is not None:
            names = {base.__name__ for base in type(case.error).__mro__}
            case.kind = "documented" if names & set(target["raises"]) else "surprise"
        case.features = arcs | observing.describe_outcome(case)
        return case

    # --- what a target accepts

    def fit(self, target: dict[str, Any], function: Any) -> tuple[dict[str, str], list[Case]]:
        """Choose a strategy for each parameter: (chosen sources, cases seen on the way)."""
        chosen = {param["name"]: param["candidates"][0] for param in target["params"]}
        cases = []
        alike = [p for p in target["params"] if p["default"] is None and len(p["candidates"]) > 1]
        alike = [p for p in alike if p["candidates"] == alike[0]["candidates"]]
        if len(alike) > 1 and self.score(self.sample(target, function, chosen, {})) < GOOD_SCORE:
            # Parameters of one type mostly want the same kind of value: two lists of one length, say.
            shared = alike[0]["candidates"]
            tried = [self.sample(target, function, chosen, dict.fromkeys(names(alike), c)) for c in shared]
            best = max(range(len(shared)), key=lambda index: self.score(tried[index]))
            chosen.update(dict.fromkeys(names(alike), shared[best]))
        started = time.monotonic()
        for param in target["params"]:
            if len(param["candidates"]) == 1 or time.monotonic() - started > target["budget_s"]:
                continue
            current = self.sample(target, function, chosen, {param["name"]: chosen[param["name"]]})
            cases += current
            if not param["always"] and self.score(current) >= GOOD_SCORE:
                continue
            seen = [(chosen[param["name"]], current)]
            for candidate in param["candidates"]:
                if candidate != chosen[param["name"]]:
                    seen.append(
                        (candidate, self.sample(target, function, chosen, {param["name"]: candidate}))
                    )
                    cases += seen[-1][1]
            chosen[param["name"]] = self.unite(seen, param)
        return chosen, cases

    def sample(
        self, target: dict[str, Any], function: Any, chosen: dict[str, str], instead: Any
    ) -> list[Case]:
        """A few calls with options at their defaults, but for those in ``instead``."""
        drawn = self.draw({**chosen, **list_defaults(target), **instead}, FIT_DRAWS)
        return [self.run_case(target, function, values) for values in drawn]

    @staticmethod
    def score(cases: list[Any]) -> float:
        """The share of calls that ended well; a refusal that is documented counts a little."""
        if not cases:
            return -1.0
        worth = {"ok": 1.0, "documented": 0.1, "surprise": 0.0, "slow": -3.0, "refused": -1.0}
        # A strategy of two or three values tells little, however well it goes.
        return sum(worth[case.kind] for case in cases) / max(len(cases), 8)

    def unite(self, seen: Any, param: Any) -> str:
        """The best candidate, and others that lead to branches which it does not reach."""
        bad = ("slow", "refused")
        usable = [entry for entry in seen if not any(case.kind in bad for case in entry[1])] or seen
        best = max(usable, key=lambda entry: self.score(entry[1]))
        first = usable[0]
        if self.score(best[1]) - self.score(first[1]) > 0.25:
            picked = [best]
        else:
            picked = [first]
        if param["untyped"] or not param["always"]:
            return picked[0][0]
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

    # --- one target

    def probe_target(self, target: dict[str, Any]) -> dict[str, Any]:
        target["wrappers"] = ["asyncio.run({call})"] if target["is_async"] else []
        function = self.compile_call(target)
        with contextlib.suppress(TooSlow):
            first = self.draw({p["name"]: p["candidates"][0] for p in target["params"]}, 5)
            for values in first:
                result, error, _features = self.call(function, values, watched=False)
                if error is None and hasattr(result, "__next__"):
                    target["wrappers"].append("list(itertools.islice({call}, %d))" % ITERATOR_CAP)
                    function = self.compile_call(target)
                    break
        chosen, cases = self.fit(target, function)
        drawn = self.draw(chosen, FINAL_DRAWS)
        optional = list_defaults(target)
        if optional:
            # Calls as people write them: most options left alone.
            plain = self.draw({**chosen, **optional}, FINAL_DRAWS // 2)
            drawn = [
                case for pair in itertools.zip_longest(plain, drawn) for case in pair if case is not None
            ]
        final = []
        started = time.monotonic()
        for values in drawn:
            final.append(self.run_case(target, function, values))
            if time.monotonic() - started > target["budget_s"]:
                break
        if optional and any(case.kind in ("refused", "slow") for case in final):
            # It may be only the defaults that it must not be called with.
            again = [self.run_case(target, function, values) for values in self.draw(chosen, FINAL_DRAWS)]
            final = again if not any(case.kind in ("refused", "slow") for case in again) else final
        if target["builds"]:
            self.define_instances(target, chosen, final)
        return self.describe(target, function, chosen, cases, final)

    def compile_call(self, target: dict[str, Any]) -> Callable[..., Any]:
        variables = {param["name"]: param["name"] for param in target["params"]}
        call = write_call(target, variables)
        return eval("lambda " + ", ".join(variables) + ": " + call, self.names)  # noqa: S307

    def define_instances(self, target: dict[str, Any], chosen: dict[str, str], cases: list[Any]) -> None:
        """A strategy for instances of the class, made only of arguments that its constructor took."""
        good = [case for case in cases if case.kind == "ok"]
        class_source = target["template"].split("(")[0]
        if not good:
            return
        source = None
        safe = chosen if len(good) == len(cases) else self.find_safe(target)
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
            self.names[target["strategy_name"]] = self.compile_strategy(source)

    def find_safe(self, target: dict[str, Any]) -> dict[str, str] | None:
        """The first combination of candidates with which the constructor never refuses."""
        function = self.compile_call(target)
        combinations = itertools.product(*(param["candidates"] for param in target["params"]))
        for combination in itertools.islice(combinations, 24):
            chosen = dict(zip(names(target["params"]), combination))  # noqa: B905
            cases = self.sample(target, function, chosen, chosen)
            if len(cases) < FIT_DRAWS // 2 or any(case.kind != "ok" for case in cases):
                continue
            more = [self.run_case(target, function, values) for values in self.draw(chosen, FINAL_DRAWS)]
            if all(case.kind == "ok" for case in more):
                return chosen
        return None

    def describe(
        self, target: dict[str, Any], function: Any, chosen: dict[str, str], cases: list[Any], final: Any
    ) -> dict[str, Any]:
        good = [case for case in final if case.kind == "ok"]
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
            "surprises": self.list_errors(target, final + cases, "surprise"),
            "documented": self.list_errors(target, final + cases, "documented"),
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
        found["types"] = self.list_types(good)
        self.check_repeats(found, function, good)
        if found["stable"]:
            pool = [case for case in cases + final if case.kind in ("ok", "documented")]
            found["pins"] = self.write_pins(target, found, pool)
            found["holds"] = observing.list_invariants(good, self.names) if not found["changes"] else []
        for relation in target["relations"]:
            known = [held["name"] for held in found["relations"]]
            if relation["name"] not in known and self.relation_holds(relation, target, function, good, found):
                found["relations"].append(relation)
        return found

    def list_errors(self, target: dict[str, Any], cases: list[Any], kind: Any) -> list[dict[str, Any]]:
        """One example of each exception type."""
        found = {}
        for case in cases:
            if case.kind == kind and type(case.error).__name__ not in found:
                name, needed = self.name_class(type(case.error))
                call = write_call(target, case.sources, True) if None not in case.sources.values() else None
                found[type(case.error).__name__] = {
                    "exception": name or "Exception",
                    "import": needed,
                    "call": (call or "")[:300],
                    "message": str(case.error)[:200],
                }
        return list(found.values())

    def name_class(self, kind: Any) -> tuple[str | None, str]:
        """How to write a class in the test file: (source, module to import or "")."""
        if kind.__module__ == "builtins":
            return (kind.__name__, "") if hasattr(__builtins__, kind.__name__) else (None, "")
        if getattr(self.module, kind.__name__, None) is kind:
            return self.request["module"] + "." + kind.__name__, ""
        owner = sys.modules.get(kind.__module__)
        if owner is not None and "." not in kind.__qualname__ and getattr(owner, kind.__name__, None) is kind:
            return kind.__module__ + "." + kind.__name__, kind.__module__
        return None, ""

    def list_types(self, good: list[Any]) -> list[dict[str, Any]]:
        kinds = list(dict.fromkeys(type(case.result) for case in good))
        if len(kinds) > 4:
            return []
        found = []
        for kind in kinds:
            name, needed = ("None", "") if kind is type(None) else self.name_class(kind)
            if name is None:
                return []
            found.append({"name": name, "import": needed})
        return found

    def check_repeats(self, found: dict[str, Any], function: Any, good: list[Any]) -> None:
        """Whether the same arguments give the same result, and stay as they are."""
        changed = set()
        for case in good[:60]:
            before, again = copy_values(case.values), copy_values(case.values)
            result, error, _features = self.call(function, again, watched=False)
            if error is not None or not observing.same(result, case.result):
                found["stable"] = found["stable"] and not observing.is_plain(case.result)
                found["comparable"] = False
                continue
            twice, error, _features = self.call(function, again, watched=False)
            if error is not None or not observing.equal(twice, result):
                found["comparable"] = False
            for name, value in again.items():
                if isinstance(value, (list, dict, set, bytearray)) and not observing.same(
                    value, before[name]
                ):
                    changed.add(name)
        found["changes"] = sorted(changed)

    # --- examples

    def write_pins(self, target: dict[str, Any], found: dict[str, Any], pool: Any) -> list[dict[str, Any]]:
        """Assertions on recorded results, each tried out before it is handed on."""
        pins = []
        written = [case for case in pool if None not in case.sources.values()]
        if target["template"].startswith("hash("):
            return []  # differs from process to process
        refusals = 0
        seen = set()
        for case in observing.pick(written, 40, by_result=not found["changes"]):
            call = write_call(target, case.sources, True)
            if call is None or call in seen or len(call) > 240:
                continue
            seen.add(call)
            if case.kind == "documented":
                name, needed = self.name_class(type(case.error))
                if refusals < 3 and name and self.try_refusal(name, call):
                    refusals += 1
                    pins.append({"raises": name, "import": needed, "call": call})
                continue
            lines = self.write_assertion(target, found, case, call)
            if lines and self.try_lines(lines):
                pins.append({"lines": lines})
            if len(pins) >= target["pin_cap"]:
                break
        return pins

    def write_assertion(
        self, target: dict[str, Any], found: dict[str, Any], case: Any, call: str
    ) -> list[str] | None:
        if found["changes"]:
            return self.write_changes(target, found, case)
        expected = write_value(case.result, self.made)
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
        if type(case.result).__repr__ is object.__repr__ or isinstance(
            case.result, (types.FunctionType, dict)
        ):
            return None
        return ["assert repr(" + call + ") == " + repr(shown)]

    def write_changes(self, target: dict[str, Any], found: dict[str, Any], case: Any) -> list[str] | None:
        after = copy_values(case.values)
        function = self.compile_call(target)
        _result, error, _features = self.call(function, after, watched=False)
        if error is not None:
            return None
        sources = dict(case.sources)
        lines = []
        for name in found["changes"]:
            lines.append(name + " = " + sources[name])
            sources[name] = name
        call = write_call(target, sources, True)
        if call is None:
            return None
        lines.append(call)
        for name in found["changes"]:
            expected = write_value(after[name], self.made)
            if expected is None:
                return None
            lines.append("assert " + name + " == " + expected)
        return lines

    def try_lines(self, lines: list[str]) -> bool:
        names = dict(self.names)
        _result, error, _features = self.call(
            lambda: exec("\n".join(lines), names),  # noqa: S102
            {},
            watched=False,
        )
        return error is None

    def try_refusal(self, name: str, call: str) -> bool:
        _result, error, _features = self.call(
            lambda: eval(call, dict(self.names)),  # noqa: S307
            {},
            watched=False,
        )
        return isinstance(error, Exception) and self.name_class(type(error))[0] == name

    # --- properties

    def relation_holds(
        self, relation: Any, target: dict[str, Any], function: Any, good: list[Any], found: dict[str, Any]
    ) -> bool:
        """Whether a property held for every call that ended well, and for enough of them to say so."""
        if found["changes"]:
            return False
        variables = ["result", *good[0].values]
        try:
            check = eval("lambda " + ", ".join(variables) + ": " + relation["predicate"], self.names)  # noqa: S307
        except SyntaxError:
            return False
        told = set()
        for case in good:
            values = copy_values(case.values)
            verdict, error, _features = self.call(check, {"result": case.result, **values}, watched=False)
            if error is not None or not verdict:
                return False
            told.add(repr(case.result)[:200])
        return len(told) >= 5 and self.survives(relation, target, function, good)

    def survives(self, relation: Any, target: dict[str, Any], function: Any, good: list[Any]) -> bool:
        """Whether the property also holds for arguments that other functions of the module made."""
        for challenge in relation["challenges"]:
            variables = list(good[0].values)
            source = "lambda " + ", ".join(variables) + ": " + challenge
            make = eval(source, self.names)  # noqa: S307
            check = eval("lambda result, " + ", ".join(variables) + ": " + relation["predicate"], self.names)  # noqa: S307
            for case in good[:CHALLENGED]:
                made, error, _features = self.call(make, copy_values(case.values), watched=False)
                first = variables[0]
                if error is not None or type(made) is not type(case.values[first]):
                    continue
                values = {**copy_values(case.values), first: made}
                result, error, _features = self.call(function, values, watched=False)
                if error is not None:
                    continue
                verdict, error, _features = self.call(check, {"result": result, **values}, watched=False)
                if error is not None or not verdict:
                    return False
        return True


def copy_values(values: dict[str, Any]) -> dict[str, Any]:
    """Copies of the arguments; what cannot be copied is handed on as it is."""
    copied = {}
    for name, value in values.items():
        try:
            copied[name] = copy.deepcopy(value)
        except Exception:  # noqa: BLE001  (a value of the code under probe may refuse in any way)
            copied[name] = value
    return copied


def list_defaults(target: dict[str, Any]) -> dict[str, str]:
    """Strategies that leave every option alone."""
    return {p["name"]: "st.just(" + p["default"] + ")" for p in target["params"] if p["default"] is not None}


def names(params: list[dict[str, Any]]) -> list[str]:
    return [param["name"] for param in params]


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    with open(sys.argv[2], "a", encoding="utf-8") as results:

        def tell(found: dict[str, Any]) -> None:
            results.write(json.dumps(found) + "\n")
            results.flush()

        try:
            probe = Probe(request, results)
        except BaseException as error:  # noqa: BLE001  (importing runs the module's own code)
            tell({"event": "unloadable", "why": type(error).__name__ + ": " + str(error)[:300]})
            return
        for target in request["targets"]:
            tell({"event": "start", "target": target["name"]})
            try:
                missing = [
                    p["name"] for p in target["params"] if p["needs"] and p["needs"] not in probe.names
                ]
                if missing:
                    tell({"event": "unmade", "target": target["name"], "parameters": missing})
                    continue
                tell(probe.probe_target(target))
            except (Exception, TooSlow) as error:  # noqa: BLE001  (one odd target must not end the others)
                why = type(error).__name__ + ": " + str(error)[:300]
                tell({"event": "failed", "target": target["name"], "why": why})
        tell({"event": "end"})


if __name__ == "__main__":
    main()
