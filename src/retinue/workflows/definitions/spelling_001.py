"""Converts the workflow spelling of seed 001's ecosystem (specification 2.1) to the grammar.

``metadata{id, name, version, description, tags}``, ``steps[]{id, skill, inputs, outputs, timeout, step_type,
condition, branches}``, templates ``{{ workflow.input.x }}`` and ``{{ steps.<id>.outputs.<path> }}``. How the
keys are read:

- a time limit is a bare number of seconds; ``inputs`` become ``with``, and absent ones chain;
- a parallel step runs each step of ``branches.steps`` side by side;
- a conditional step becomes its branches' steps, those of ``if_true`` with the condition as
  ``when`` and those of ``if_false`` with its negation; its own id names nothing afterwards;
- a switch step runs the branch that is called as its ``condition``'s value is, else ``default``;
- the ``skill`` of a parallel, conditional or switch step calls nothing, as in that engine;
- ``error_handling`` is stop, continue or retry (three attempts), as a text or under any key;
- ``retry``, ``on_error`` and ``compensate`` of a step are read as in the canonical grammar;
- ``outputs`` as a text is another name by which templates may read the step;
- a template may also stand within a longer text, where that engine knew whole texts only;
- the run's output is every step's, merged, since no step there is the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.workflows.definitions.checks import unknown_key
from retinue.workflows.definitions.documents import Document, Path, Place
from retinue.workflows.definitions.values import render_duration

_TOP_KEYS = ("metadata", "steps", "error_handling", "input_schema", "output")
_METADATA_KEYS = ("id", "name", "version", "description", "tags", "author", "created", "updated")
_STEP_KEYS = (
    "id",
    "name",
    "description",
    "skill",
    "inputs",
    "outputs",
    "timeout",
    "step_type",
    "condition",
    "branches",
    "retry",
    "on_error",
    "compensate",
)
_PASSED_ON = ("retry", "on_error", "compensate")
_STOPPING = frozenset({"stop", "fail", "abort", "fail_fast"})
_CONTINUING = frozenset({"continue", "ignore"})
_TEMPLATE = re.compile(r"(?P<dollar>\$?)\{\{(?P<inner>.*?)\}\}", re.DOTALL)
_INPUT = re.compile(r"(?<![\w.])workflow\.input(?P<path>(?:\.[\w-]+)*)")
_OUTPUT = re.compile(r"(?<![\w.])steps\.(?P<id>[\w-]+)\.outputs(?P<path>(?:\.[\w-]+)*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition in CEL, and where it was written."""

    text: str
    path: Path

    def both(self, other: _Condition | None) -> _Condition:
        return self if other is None else _Condition(f"({self.text}) && ({other.text})", other.path)


def read_seed_001(document: Document) -> Document:
    """The same workflow in the canonical grammar, with the lines of the text it came from.

    Raises DefinitionError.
    """
    return _Translation(document).translate()


class _Translation:
    """One pass over a document; each value that it writes keeps its line."""

    def __init__(self, document: Document) -> None:
        self._from = document
        self._places: dict[Path, Place] = {}
        self._aliases: dict[str, str] = {}

    def translate(self) -> Document:
        value = self._from.value
        self._check_keys(value, (), _TOP_KEYS)
        self._check_keys(value["metadata"], ("metadata",), _METADATA_KEYS)
        settings = self._read_error_handling(value.get("error_handling"))
        self._collect_aliases(value["steps"])
        metadata = value["metadata"]
        name = metadata.get("id") or metadata.get("name")
        if name is None:
            raise self._from.fault(("metadata",), "'id' is missing", "add id")
        canonical: dict[str, Any] = {
            "name": str(name),
            "description": str(metadata.get("description") or metadata.get("name") or ""),
            "steps": self._translate_steps(value["steps"], ("steps",), ("steps",), None),
            "output": self._translate_value(value.get("output", "merged"), ("output",)),
        }
        self._places |= {("name",): self._from.place_of(("metadata",)), (): self._from.place_of(())}
        if settings:
            canonical["settings"] = self._place(settings, ("settings",), ("error_handling",))
        if metadata.get("version") is not None:
            canonical["version"] = str(metadata["version"])
        if metadata.get("tags"):
            canonical["tags"] = metadata["tags"]
        if value.get("input_schema") is not None:
            canonical["input"] = value["input_schema"]
        return Document(canonical, self._from.source, self._places)

    def _translate_steps(self, steps: Any, path: Path, target: Path, when: _Condition | None) -> list[Any]:
        if not isinstance(steps, list):
            raise self._from.fault(path, "no list of steps", "write a list")
        translated: list[Any] = []
        for index, step in enumerate(steps):
            translated += self._translate_step(step, (*path, index), target, len(translated), when)
        return translated

    def _translate_step(
        self, step: Any, path: Path, target: Path, index: int, when: _Condition | None
    ) -> list[dict[str, Any]]:
        if not isinstance(step, Mapping):
            raise self._from.fault(path, "no step", "write an object with id and skill")
        self._check_keys(step, path, _STEP_KEYS)
        if "id" not in step:
            raise self._from.fault(path, "'id' is missing", "add id")
        kind = step.get("step_type", "sequential")
        if kind == "conditional":
            return self._translate_conditional(step, path, target, index, when)
        here = (*target, index)
        self._places[here] = self._from.place_of(path)
        canonical: dict[str, Any] = {"id": step["id"]}
        if step.get("description"):
            canonical["description"] = step["description"]
        condition = self._read_condition(step, path)
        condition = when.both(condition) if when is not None else condition
        if condition is not None:
            canonical["when"] = self._place(condition.text, (*here, "when"), condition.path)
        if kind == "sequential":
            self._fill_call(canonical, step, path, here)
        elif kind == "parallel":
            canonical["parallel"] = {"mode": "all"}
            branches = self._read_branches(step, path, ("steps",))
            canonical["steps"] = self._translate_steps(
                branches.get("steps"), (*path, "branches", "steps"), (*here, "steps"), None
            )
        elif kind == "switch":
            canonical |= self._translate_switch(step, path, here)
            if when is None:
                canonical.pop("when", None)
            else:
                canonical["when"] = when.text
        else:
            raise self._from.fault(
                (*path, "step_type"),
                f"unknown step_type {kind!r}",
                "write sequential, parallel, conditional or switch",
            )
        for key in _PASSED_ON:
            if step.get(key) is not None:
                canonical[key] = self._translate_value(step[key], (*path, key), (*here, key))
        return [canonical]

    def _translate_switch(self, step: Mapping[str, Any], path: Path, here: Path) -> dict[str, Any]:
        condition = self._read_condition(step, path)
        if condition is None:
            raise self._from.fault(path, "a switch step without a condition", "add condition")
        branches = self._read_branches(step, path, None)
        return {
            "switch": self._place(condition.text, (*here, "switch"), condition.path),
            "branches": {
                name: self._translate_steps(
                    nested, (*path, "branches", name), (*here, "branches", name), None
                )
                for name, nested in branches.items()
            },
        }

    def _fill_call(self, canonical: dict[str, Any], step: Mapping[str, Any], path: Path, here: Path) -> None:
        if "skill" not in step:
            raise self._from.fault(path, "'skill' is missing", "add skill")
        canonical["skill"] = self._place(step["skill"], (*here, "skill"), (*path, "skill"))
        if step.get("inputs") is not None:
            canonical["with"] = self._translate_value(step["inputs"], (*path, "inputs"), (*here, "with"))
        if step.get("timeout") is not None:
            timeout = step["timeout"]
            seconds = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
            canonical["timeout"] = self._place(
                render_duration(timeout) if seconds else timeout, (*here, "timeout"), (*path, "timeout")
            )
        if step.get("branches"):
            raise self._from.fault(
                (*path, "branches"),
                "branches on a sequential step",
                "set step_type to parallel or conditional",
            )

    def _translate_conditional(
        self, step: Mapping[str, Any], path: Path, target: Path, index: int, when: _Condition | None
    ) -> list[dict[str, Any]]:
        condition = self._read_condition(step, path)
        if condition is None:
            raise self._from.fault(path, "a conditional step without a condition", "add condition")
        branches = self._read_branches(step, path, ("if_true", "if_false"))
        translated: list[dict[str, Any]] = []
        negated = _Condition(f"!({condition.text})", condition.path)
        for name, holds in (("if_true", condition), ("if_false", negated)):
            both = holds if when is None else when.both(holds)
            for nested_index, nested in enumerate(branches.get(name) or []):
                nested_path = (*path, "branches", name, nested_index)
                translated += self._translate_step(nested, nested_path, target, index + len(translated), both)
        return translated

    def _read_branches(
        self, step: Mapping[str, Any], path: Path, known: tuple[str, ...] | None
    ) -> Mapping[str, Any]:
        branches = step.get("branches")
        if not isinstance(branches, Mapping) or not branches:
            name = known[0] if known else "default"
            raise self._from.fault(path, "no branches", f"add branches: {{{name}: [...]}}")
        if known is not None:
            self._check_keys(branches, (*path, "branches"), known)
        for name, steps in branches.items():
            if not isinstance(steps, list):
                raise self._from.fault((*path, "branches", name), "no list of steps", "write a list")
        return branches

    def _read_condition(self, step: Mapping[str, Any], path: Path) -> _Condition | None:
        condition = step.get("condition")
        if condition is None:
            return None
        if not isinstance(condition, str):
            raise self._from.fault((*path, "condition"), "no text", "write the condition as a text")
        unwrapped = _TEMPLATE.sub(lambda match: f"({match['inner'].strip()})", condition).strip()
        return _Condition(self._translate_expression(unwrapped), (*path, "condition"))

    def _translate_value(self, value: Any, path: Path, target: Path | None = None) -> Any:
        target = path if target is None else target
        self._places[target] = self._from.place_of(path)
        if isinstance(value, str):
            return _TEMPLATE.sub(self._translate_template(path), value)
        if isinstance(value, Mapping):
            return {
                key: self._translate_value(inner, (*path, key), (*target, key))
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._translate_value(inner, (*path, n), (*target, n)) for n, inner in enumerate(value)]
        return value

    def _translate_template(self, path: Path) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            inner = match["inner"].strip()
            translated = self._translate_expression(inner)
            if translated == inner:
                raise self._from.fault(
                    path,
                    f"template {match.group()!r} reads nothing known",
                    "write {{ workflow.input.x }} or {{ steps.<id>.outputs.<path> }}",
                )
            # A dollar in the text must not become part of ours.
            dollar = "${{ '$' }}" if match["dollar"] else ""
            return f"{dollar}${{{{ {translated} }}}}"

        return replace

    def _translate_expression(self, source: str) -> str:
        source = _INPUT.sub(lambda match: "input" + _render_path(match["path"]), source)

        def replace(match: re.Match[str]) -> str:
            step_id = self._aliases.get(match["id"], match["id"])
            return "steps" + _render_path(f".{step_id}") + ".output" + _render_path(match["path"])

        return _OUTPUT.sub(replace, source)

    def _collect_aliases(self, steps: Any) -> None:
        for step in steps if isinstance(steps, list) else ():
            if not isinstance(step, Mapping):
                continue
            if isinstance(step.get("outputs"), str) and isinstance(step.get("id"), str):
                self._aliases[step["outputs"]] = step["id"]
            branches = step.get("branches")
            for nested in branches.values() if isinstance(branches, Mapping) else ():
                self._collect_aliases(nested)

    def _check_keys(self, value: Mapping[str, Any], path: Path, known: tuple[str, ...]) -> None:
        for key in value:
            if key not in known:
                raise unknown_key(self._from, (*path, key), known)

    def _read_error_handling(self, value: Any) -> dict[str, Any]:
        """The settings that a text, or the texts below any keys, stand for."""
        settings: dict[str, Any] = {}
        for said in value.values() if isinstance(value, Mapping) else (value,):
            if isinstance(said, str) and said in _CONTINUING:
                settings["on_error"] = "continue"
            elif said == "retry":
                settings["retry"] = {"attempts": 3}
            elif said is not None and said not in _STOPPING:
                raise self._from.fault(
                    ("error_handling",),
                    f"{said!r} is no way to handle errors",
                    "write stop, continue or retry",
                )
        return settings

    def _place(self, value: Any, target: Path, path: Path) -> Any:
        self._places[target] = self._from.place_of(path)
        return value


def _render_path(path: str) -> str:
    """``.a.b-c.0`` as CEL: ``.a["b-c"][0]``."""
    parts: list[str] = []
    for part in path.split(".")[1:]:
        if part.isdigit():
            parts.append(f"[{part}]")
        else:
            parts.append(f".{part}" if _NAME.fullmatch(part) else f'["{part}"]')
    return "".join(parts)
