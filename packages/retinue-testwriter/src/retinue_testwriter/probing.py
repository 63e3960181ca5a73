"""Runs ``inside/probe.py``, which calls the targets and records accepted arguments, results and exceptions.

A target that kills or hangs the probe is reported and skipped; the others continue in a new process.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from retinue.core.errors import ExecutionFailedError
from retinue.processes.limited import ProgramLimits, run_command
from retinue_testwriter.inspection import describe_end
from retinue_testwriter.relations import Relation, list_relations
from retinue_testwriter.strategies import PLAIN_DATA, UNTYPED, TypeReader, list_text_flavours
from retinue_testwriter.subject import ProbedTarget, Subject, TargetParameter, Untestable

LIMITS = ProgramLimits(wall_s=60, cpu_s=60, memory_bytes=1536 * 1024**2, processes=8, must_bind=True)
_BUDGET_S = 9.0
_RESTARTS = 6
_PINS = 240


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of the probe by target, and the targets that cannot be tested.

    ``instances`` maps names to definitions of strategies for the module's classes, in order of dependency.
    """

    by_target: Mapping[str, Mapping[str, Any]]
    relations: Mapping[str, Sequence[Relation]]
    instances: Mapping[str, str] = field(default_factory=dict)
    untestable: tuple[Untestable, ...] = ()


def choose_python(subject: Subject) -> tuple[str, list[str]]:
    """The interpreter that runs the module's tests, and folders to append to its search path.

    The module's own if it has hypothesis and pytest, else ours with that one's search path appended.
    """
    if {"hypothesis", "pytest"} <= set(subject.tools):
        return subject.python, []
    return sys.executable, [*subject.search_path]


async def probe_subject(subject: Subject, limits: ProgramLimits = LIMITS) -> Findings:
    """Probe all targets; raises ExecutionFailedError if the module cannot be imported."""
    made = {name: f"any_{_snake(name)}" for name in subject.classes}
    requests, untestable = _prepare(subject, made)
    relations = {target.name: list_relations(subject, target) for target in subject.targets}
    for request in requests:
        request["relations"] = [
            {"name": r.name, "predicate": r.predicate, "challenges": r.challenges}
            for r in relations[request["name"]]
        ]
    by_target: dict[str, Any] = {}
    instances: dict[str, str] = {}
    waiting = requests
    for _ in range(_RESTARTS):
        if not waiting:
            break
        constructors = [request for request in requests if request["builds"]]
        events, ended = await _run_probe(subject, waiting, constructors, instances, limits)
        blamed = ""
        for event in events:
            name = event.get("target", "")
            blamed = name if event["event"] == "start" else "" if name == blamed else blamed
            if event["event"] == "unloadable":
                raise ExecutionFailedError(f"{subject.module} cannot be imported: {event['why']}")
            if event["event"] == "done":
                by_target[name] = event
                if event["instances"]:
                    instances[made[subject.get_target(name).builds]] = event["instances"]
            elif event["event"] == "unmade":
                why = f"no value is known for {', '.join(event['parameters'])}"
                untestable.append(Untestable(name, why))
            elif event["event"] == "failed":
                untestable.append(Untestable(name, f"probing it failed: {event['why']}"))
        if blamed:
            untestable.append(Untestable(blamed, f"a call did not come back: {ended}"))
        elif not any(event["event"] == "end" for event in events):
            raise ExecutionFailedError(f"probing {subject.module} failed: {ended}")
        heard = {event["target"] for event in events if "target" in event}
        waiting = [request for request in waiting if request["name"] not in heard]
    untestable += [Untestable(r["name"], "probing ended before it: others hung too often") for r in waiting]
    return Findings(by_target, relations, instances, tuple(untestable))


async def _run_probe(
    subject: Subject,
    requests: Sequence[Mapping[str, Any]],
    constructors: Sequence[Mapping[str, Any]],
    instances: Mapping[str, str],
    limits: ProgramLimits,
) -> tuple[list[dict[str, Any]], str]:
    python, appended = choose_python(subject)
    with (
        tempfile.TemporaryDirectory(prefix="retinue-probe-") as name,
        resources.as_file(resources.files("retinue_testwriter.inside")) as inside,
    ):
        folder = Path(name)
        (folder / "request.json").write_text(
            json.dumps(
                {
                    "module": subject.module,
                    "root": subject.root,
                    "source": subject.source,
                    "appended": appended,
                    "plain_data": PLAIN_DATA,
                    "definitions": instances,
                    "constructors": constructors,
                    "targets": requests,
                }
            ),
            encoding="utf-8",
        )
        result = await run_command(
            [python, "-I", "-B", str(inside / "probe.py"), "request.json", "results.jsonl"],
            folder=folder,
            limits=limits,
            environment={"PYTHONHASHSEED": "0"},
        )
        results = folder / "results.jsonl"
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")], describe_end(result)


def _prepare(subject: Subject, made: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[Untestable]]:
    """The probe's requests, constructors first, and the targets with a parameter without a strategy."""
    requests: list[dict[str, Any]] = []
    untestable: list[Untestable] = []
    reader = TypeReader(made, subject.aliases)
    samples = _collect_samples(subject.targets)
    ordered = sorted(subject.targets, key=lambda target: not target.builds)
    for target in ordered:
        own_class = target.name.split(".")[0].split(" ")[0]
        params: list[dict[str, Any]] = []
        unknown = ""
        for parameter in target.parameters:
            described = _describe_parameter(reader, target, parameter, own_class, made, samples)
            if described is not None:
                params.append(described)
            elif parameter.required:
                unknown = f"parameter {parameter.name}: no values can be made for {parameter.annotation}"
        if unknown and target.is_overload:
            continue
        if unknown:
            untestable.append(Untestable(target.name, unknown))
            continue
        requests.append(
            {
                "name": target.name,
                "template": target.template,
                "operands": target.operands,
                "params": params,
                "raises": list(target.raises),
                "builds": target.builds,
                "strategy_name": made.get(target.builds, ""),
                "is_async": target.is_async,
                "pin_cap": max(8, min(16, _PINS // len(ordered))),
                "budget_s": max(0.5, min(3.0, _BUDGET_S / max(1, len(ordered)))),
            }
        )
    return requests, untestable


def _describe_parameter(
    reader: TypeReader,
    target: ProbedTarget,
    parameter: TargetParameter,
    own_class: str,
    made: Mapping[str, str],
    samples: Mapping[str, Sequence[Any]],
) -> dict[str, Any] | None:
    """A parameter with its candidate strategies; None without candidates."""
    untyped = parameter.annotation is None
    annotation = parameter.annotation or _guess_from_default(parameter.default)
    candidates = reader.list_candidates(annotation, own_class) if annotation else list(UNTYPED)
    if parameter.annotation is None and parameter.default == "None":
        return None
    if not candidates or (parameter.default == "None" and candidates == ["st.none()"]):
        return None
    candidates = _add_flavours(candidates, target, parameter.name, samples)
    if "sorted" in target.doc and candidates[0].startswith("st.lists("):
        candidates = [
            f"{candidate}.map(sorted)" for candidate in candidates if candidate.startswith("st.lists(")
        ]
    always = parameter.required and any(
        kind in candidates[0] for kind in (".text(", ".binary(", ".integers(")
    )
    if parameter.default is not None and parameter.default not in ("True", "False", "None"):
        if not _is_literal(parameter.default):
            return None
        candidates = [f"st.just({parameter.default}) | {candidate}" for candidate in candidates]
    elif parameter.default == "None" and "st.none()" not in candidates[0]:
        strategies = [candidate for candidate in candidates if candidate != "st.none()"]
        candidates = [*(f"st.none() | {candidate}" for candidate in strategies), *strategies]
        if strategies[0].startswith("st.just("):
            candidates.append("st.none()")  # a function that fits nowhere is better left out
    elif parameter.default == "None":
        strategies = [c.removeprefix("st.none() | ").removesuffix(" | st.none()") for c in candidates]
        candidates = [*candidates, *(candidate for candidate in strategies if candidate != "st.none()")]
        if any("st.just(" in candidate for candidate in candidates):
            candidates.append("st.none()")  # a function that fits nowhere is better left out
    return {
        "name": parameter.name,
        "given_name": parameter.name.rstrip("_") if parameter.kind == "keyword" else parameter.name,
        "kind": parameter.kind,
        "default": parameter.default,
        "candidates": list(dict.fromkeys(candidates))[:9],
        "untyped": untyped and not annotation,
        "always": always,
        "needs": candidates[0] if candidates[0] in made.values() else "",
    }


def _collect_samples(targets: Sequence[ProbedTarget]) -> dict[str, list[Any]]:
    """Arguments of documented examples of the whole module, by parameter name."""
    samples: dict[str, list[Any]] = {}
    for target in targets:
        named = target.parameters[target.operands :]
        for example in target.examples:
            for parameter, source in zip(named, example, strict=False):
                if _is_literal(source):
                    samples.setdefault(parameter.name, []).append(ast.literal_eval(source))
    return samples


def _add_flavours(
    candidates: list[str], target: ProbedTarget, parameter: str, samples: Mapping[str, Sequence[Any]]
) -> list[str]:
    """Candidates for a text parameter: also words of the docstring and code, and arguments of examples."""
    is_text, is_bytes = candidates[0].startswith("st.text("), candidates[0].startswith("st.binary(")
    if not (is_text or is_bytes):
        return candidates
    kind = str if is_text else bytes
    values = [value for value in samples.get(parameter, ()) if isinstance(value, kind)]
    texts = [value if isinstance(value, str) else value.decode("latin-1") for value in values]
    flavours = list_text_flavours(target.words, texts[:12], binary=is_bytes)
    return [candidates[0], *flavours, *candidates[1:]]


def _guess_from_default(default: str | None) -> str | None:
    """The type of a default value, for a parameter without an annotation."""
    if default is None or not _is_literal(default) or default == "None":
        return None
    return type(ast.literal_eval(default)).__name__


def _is_literal(source: str) -> bool:
    if source == "...":
        return False  # in stubs "..." means an unknown default
    try:
        ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return False
    return True


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
