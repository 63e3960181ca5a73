"""Converts the workflow spelling of seed 002 (specification 3.3) to the grammar.

``steps[]{name, agent (text, list or "auto"), role, condition, transform, validate, retry, timeout, parallel,
mode, onSuccess, onFailure, stopOnError}`` and ``settings{maxDuration, errorHandling, cacheStrategy,
maxIterations, metricsLevel}``. How the keys are read:

- every bare number of time is milliseconds;
- a list of agents, or ``parallel: true``, makes a parallel step, in mode ``all`` where none is named;
- ``condition``, ``transform`` and ``validate`` are expressions, where that system has functions:
  ``output`` (or ``result``) is the step's own output;
- ``onSuccess`` and ``onFailure`` name a later step; ``onFailure`` may also be stop, continue or retry;
- ``metricsLevel`` changes nothing: a run records everything.

All other keys of the canonical grammar are allowed beside these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from retinue.workflows.definitions.checks import unknown_key
from retinue.workflows.definitions.definition import Step
from retinue.workflows.definitions.documents import Document, Path
from retinue.workflows.definitions.values import render_duration
from retinue.workflows.expressions.lexer import iterate_tokens

OWN_KEYS = ("name", "condition", "mode", "onSuccess", "onFailure", "stopOnError")
SETTINGS = {
    "maxDuration": "max_duration",
    "errorHandling": "on_error",
    "cacheStrategy": "cache",
    "maxIterations": "max_iterations",
    "metricsLevel": "",
}
_RETRY = {"attempts": 3, "delay": "1s", "backoff": 2.0}
"""Specification 3.3: 3 tries, with 1, 2, 4 s between."""
_METRICS = ("basic", "detailed", "debug")
_ERROR_WORDS = ("stop", "continue", "retry")
_OWN_OUTPUT = ("output", "result")
_FUNCTION = re.compile(r"=>|^\s*(async\s+)?function\b|\breturn\b")
_KNOWN = tuple(field.alias or name for name, field in Step.model_fields.items())


def read_seed_002(document: Document) -> Document:
    """The same workflow in the canonical grammar, with the lines of the text it came from.

    Raises DefinitionError.
    """
    return _Translation(document).translate()


class _Translation:
    """One pass over a document; keys that are renamed keep the line of their own."""

    def __init__(self, document: Document) -> None:
        self._from = document
        self._places = dict(document.places)
        self._ids: dict[str, str] = {}

    def translate(self) -> Document:
        value = dict(self._from.value)
        steps = value.get("steps")
        if isinstance(steps, list):
            self._name_all(steps)
            value["steps"] = [self._step(step, ("steps", n)) for n, step in enumerate(steps)]
        if isinstance(value.get("settings"), Mapping):
            value["settings"] = self._settings(value["settings"])
        return Document(value, self._from.source, self._places)

    def _name_all(self, steps: list[Any]) -> None:
        for step in steps:
            name = step.get("name") if isinstance(step, Mapping) else None
            if isinstance(name, str) and "id" not in step:
                self._ids[name] = _as_id(name)

    def _step(self, step: Any, path: Path) -> Any:
        if not isinstance(step, Mapping):
            return step
        for key in step:
            if key not in _KNOWN and key not in OWN_KEYS:
                raise unknown_key(self._from, (*path, key), (*OWN_KEYS, *_KNOWN))
        translated = {key: value for key, value in step.items() if key not in OWN_KEYS}
        name = step.get("name")
        if name is not None and "id" not in step:
            translated["id"] = self._ids.get(str(name), _as_id(str(name)))
            self._move(path, "name", "id")
            translated.setdefault("description", str(name))
        own_id = translated.get("id")
        self._translate_agents(step, translated, path)
        self._translate_expressions(step, translated, path, own_id if isinstance(own_id, str) else None)
        self._translate_jumps(step, translated, path)
        if "timeout" in translated:
            translated["timeout"] = _as_duration(translated["timeout"])
        if isinstance(translated.get("retry"), Mapping):
            translated["retry"] = self._retry(translated["retry"], (*path, "retry"))
        return translated

    def _translate_agents(self, step: Mapping[str, Any], translated: dict[str, Any], path: Path) -> None:
        for key in ("agent", "role"):
            if translated.get(key) == "auto":
                del translated[key]
        flag, agents, mode = step.get("parallel"), step.get("agent"), step.get("mode")
        if isinstance(flag, Mapping):
            return
        translated.pop("parallel", None)
        if not (flag is True or isinstance(agents, list) or mode is not None):
            if not any(key in translated for key in ("agent", "role", "prompt", "skill")):
                translated["role"] = "execute"
            return
        parallel: dict[str, Any] = {"mode": mode or "all"}
        self._move(path, "mode", "parallel", "mode")
        agents = [agents] if isinstance(agents, str) and agents != "auto" else agents
        if isinstance(agents, list):
            parallel["agents"] = agents
            self._move(path, "agent", "parallel", "agents")
        for key in ("role", "prompt"):
            if key in translated:
                parallel[key] = translated.pop(key)
                self._move(path, key, "parallel", key)
        translated.pop("agent", None)
        translated["parallel"] = parallel

    def _translate_expressions(
        self, step: Mapping[str, Any], translated: dict[str, Any], path: Path, own_id: str | None
    ) -> None:
        if "condition" in step:
            translated["when"] = self._expression(step["condition"], (*path, "condition"), None)
            self._move(path, "condition", "when")
        for key in ("transform", "validate"):
            if isinstance(step.get(key), str):
                text = self._expression(step[key], (*path, key), own_id or "")
                translated[key] = f"${{{{ {text} }}}}" if key == "transform" and "${{" not in text else text

    def _expression(self, text: Any, path: Path, own_id: str | None) -> str:
        if not isinstance(text, str):
            raise self._from.fault(path, "no expression", "write it as a text")
        if _FUNCTION.search(text):
            raise self._from.fault(
                path, "a JavaScript function", "write an expression, such as size(output) > 0"
            )
        parts, before = [], ""
        for token in iterate_tokens(text):
            is_own = token.kind == "name" and token.text in _OWN_OUTPUT and before != "."
            if is_own and own_id is not None:
                if not own_id:
                    raise self._from.fault(path, f"{token.text!r} of a step without a name", "add name")
                parts.append(f'steps["{own_id}"].output')
            else:
                parts.append(token.text)
            before = token.text if token.kind != "space" else before
        return "".join(parts)

    def _translate_jumps(self, step: Mapping[str, Any], translated: dict[str, Any], path: Path) -> None:
        if "stopOnError" in step:
            translated["on_error"] = "stop" if step["stopOnError"] else "continue"
            self._move(path, "stopOnError", "on_error")
        failure = step.get("onFailure")
        if failure is not None:
            self._move(path, "onFailure", "on_error")
            if failure == "retry":
                translated.setdefault("retry", dict(_RETRY))
            else:
                translated["on_error"] = (
                    failure if failure in _ERROR_WORDS else {"goto": self._target(failure)}
                )
        if step.get("onSuccess") is not None:
            translated["then"] = self._target(step["onSuccess"])
            self._move(path, "onSuccess", "then")

    def _target(self, name: Any) -> Any:
        return self._ids.get(name, name) if isinstance(name, str) else name

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        translated: dict[str, Any] = {}
        for key, value in settings.items():
            path: Path = ("settings", key)
            name = SETTINGS.get(key, key)
            if name:
                self._places["settings", name] = self._from.place_of(path)
            if key == "metricsLevel":
                if value not in _METRICS:
                    raise self._from.fault(path, f"{value!r} is no level", f"write {', '.join(_METRICS)}")
            elif key == "maxDuration":
                translated[name] = _as_duration(value)
            elif key == "errorHandling":
                if value not in _ERROR_WORDS:
                    raise self._from.fault(
                        path, f"{value!r} is no way to handle errors", f"write {', '.join(_ERROR_WORDS)}"
                    )
                if value == "retry":
                    translated["retry"] = dict(_RETRY)
                else:
                    translated[name] = value
            else:
                translated[name] = value
        return translated

    def _retry(self, retry: Mapping[str, Any], path: Path) -> dict[str, Any]:
        translated = dict(retry)
        translated["delay"] = _as_duration(translated.get("delay", 1000))
        if "backoffFactor" in translated:
            translated["backoff"] = translated.pop("backoffFactor")
            self._places[(*path, "backoff")] = self._from.place_of((*path, "backoffFactor"))
        if isinstance(translated.get("backoff"), int) and not isinstance(translated["backoff"], bool):
            translated["backoff"] = float(translated["backoff"])
        return translated

    def _move(self, path: Path, key: str, *target: str) -> None:
        """Move the value under ``key`` to ``target``, with its line."""
        if (*path, key) in self._places:
            self._places[(*path, *target)] = self._places[(*path, key)]


def _as_duration(value: Any) -> Any:
    """Milliseconds as a duration; other values are left to the checks."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15:
        return render_duration(value / 1000)
    return value


def _as_id(name: str) -> str:
    """A name as an id: ``Generate code!`` is ``generate-code``."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name.strip()).strip("-")[:60].lower()
    return plain if plain and (plain[0].isalpha() or plain[0] == "_") else f"step-{plain}".rstrip("-")
