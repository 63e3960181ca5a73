"""Derives the list of targets from the outline of a module and its stubs."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retinue_testwriter.subject import ProbedTarget, TargetParameter, read_parameters

MAX_TARGETS = 60
_MAX_OPTIONAL = 12

BINARY = {
    "__add__": "+",
    "__sub__": "-",
    "__mul__": "*",
    "__truediv__": "/",
    "__floordiv__": "//",
    "__mod__": "%",
    "__pow__": "**",
    "__matmul__": "@",
    "__and__": "&",
    "__or__": "|",
    "__xor__": "^",
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
    "__eq__": "==",
    "__contains__": "in",
}
UNARY = {
    "__neg__": "-{0}",
    "__pos__": "+{0}",
    "__invert__": "~{0}",
    "__abs__": "abs({0})",
    "__str__": "str({0})",
    "__repr__": "repr({0})",
    "__hash__": "hash({0})",
    "__len__": "len({0})",
    "__bool__": "bool({0})",
    "__int__": "int({0})",
    "__float__": "float({0})",
    "__round__": "round({0})",
    "__iter__": "list(itertools.islice({0}, 50))",
}
_IMPLIED = {
    "__truediv__": ("ZeroDivisionError",),
    "__floordiv__": ("ZeroDivisionError",),
    "__mod__": ("ZeroDivisionError",),
    "__pow__": ("ZeroDivisionError", "OverflowError"),
}
"""Exceptions that are normal for an operator."""


def list_targets(
    outline: Mapping[str, Any], stubs: Mapping[str, Any]
) -> tuple[list[ProbedTarget], list[tuple[str, str]]]:
    """Targets in the order of the source, and a (name, reason) for each definition left out.

    Stubs win over the source where both have a signature: they hold types.
    """
    module = outline["module"]
    functions, classes = outline.get("functions", {}), outline.get("classes", {})
    public = outline.get("public") or stubs["public"]
    own_errors = tuple(name for name, described in classes.items() if _is_exception(described, classes))
    targets: list[ProbedTarget] = []
    left_out: list[tuple[str, str]] = []
    for name in public:
        if name in functions or (not outline["source"] and name in stubs["functions"]):
            signatures = stubs["functions"].get(name) or [functions[name]]
            for number, signature in enumerate(_choose_signatures(signatures)):
                shown = name if number == 0 else f"{name} ({number + 1})"
                targets.append(
                    _make(
                        shown, f"{module}.{name}({{arguments}})", signature, functions.get(name), own_errors
                    )
                )
        elif name in classes:
            if name in own_errors:
                continue
            targets += _list_class_targets(
                module, classes[name], stubs["classes"].get(name, {}), own_errors, left_out
            )
    unique = list({target.name: target for target in targets}.values())
    left_out += [
        (target.name, f"over the cap of {MAX_TARGETS} targets for one module")
        for target in unique[MAX_TARGETS:]
    ]
    return unique[:MAX_TARGETS], left_out


def _is_exception(described: Mapping[str, Any], classes: Mapping[str, Any]) -> bool:
    return any(
        base.endswith(("Error", "Exception", "Warning"))
        or (base in classes and base != described["name"] and _is_exception(classes[base], classes))
        for base in described["bases"]
    )


def _choose_signatures(signatures: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The first overload, and one more whose required parameters have other types."""
    seen: set[tuple[str, ...]] = set()
    for signature in signatures:
        key = tuple(
            str(p["annotation"])
            for p in signature["parameters"]
            if p["default"] is None and p["kind"] in ("positional", "either")
        )
        if key not in seen and len(seen) < 2:
            seen.add(key)
            yield signature


def _list_class_targets(
    module: str,
    described: Mapping[str, Any],
    stub: Mapping[str, Any],
    own_errors: tuple[str, ...],
    left_out: list[tuple[str, str]],
) -> Iterator[ProbedTarget]:
    name = described["name"]
    methods = {method["name"]: method for method in described["methods"]}
    stubbed = stub.get("methods", {})
    if "Protocol" in described["bases"] or any(
        "abstract" in d for m in methods.values() for d in m["decorators"]
    ):
        left_out.append((name, "is abstract: there is no instance to test"))
        return
    maker = next((m for m in ("__init__", "__new__") if m in stubbed), None) or next(
        (m for m in ("__init__", "__new__") if m in methods), None
    )
    if maker:
        signatures = stubbed.get(maker) or [methods[maker]]
        parameters: Sequence[Mapping[str, Any]] = []
    elif any("dataclass" in d for d in described["decorators"]) or "NamedTuple" in described["bases"]:
        signatures = [{"parameters": described["fields"], "returns": name, "decorators": []}]
    elif described["bases"] and not set(described["bases"]) <= {"object"}:
        left_out.append((name, f"inherits its constructor from {', '.join(described['bases'])}"))
        return
    else:
        signatures = [{"parameters": [], "returns": name, "decorators": []}]
    for number, signature in enumerate(_choose_signatures(signatures)):
        parameters = signature["parameters"][1:] if maker else signature["parameters"]
        shown = name if number == 0 else f"{name} ({number + 1})"
        about = {
            "doc": described["doc"],
            "raises": described["raises"],
            "words": described["words"] + methods.get(maker or "", {}).get("words", []),
            "examples": described["examples"],
        }
        yield _make(
            shown,
            f"{module}.{name}({{arguments}})",
            {**signature, "parameters": parameters, "returns": name},
            about,
            own_errors,
            builds=name if number == 0 else "",
        )
    for method in [*methods, *(m for m in stubbed if m not in methods and m in BINARY)]:
        errors = (*own_errors, *_IMPLIED.get(method, ()))
        if method == "__iter__":
            errors += tuple(methods.get("__next__", {}).get("raises", ()))
        yield from _list_method_targets(
            module, name, method, methods.get(method), stubbed.get(method), errors, described["bases"]
        )


def _list_method_targets(
    module: str,
    class_name: str,
    method: str,
    source: Mapping[str, Any] | None,
    stub: Sequence[Mapping[str, Any]] | None,
    own_errors: tuple[str, ...],
    bases: Sequence[str] = (),
) -> Iterator[ProbedTarget]:
    signatures = stub or ([source] if source else [])
    if not signatures:
        return
    shown = f"{class_name}.{method}"
    signature = signatures[0]
    decorators = [*signature["decorators"], *(source["decorators"] if source else [])]
    own = TargetParameter(_variable(class_name), "positional", class_name)
    if method in BINARY:
        first = signature["parameters"][1:2]
        template = f"{{0}} {BINARY[method]} {{1}}" if method != "__contains__" else "{1} in {0}"
        other = dict(first[0]) if first else {"annotation": None}
        is_object = other["annotation"] in (None, "object", *bases)
        other |= {"name": "other", "kind": "positional", "default": None}
        other["annotation"] = class_name if is_object and method != "__contains__" else other["annotation"]
        operands = (own, *read_parameters([other]))
        yield _make(shown, template, {**signature, "parameters": []}, source, own_errors, operands=operands)
    elif method in UNARY:
        yield _make(
            shown, UNARY[method], {**signature, "parameters": []}, source, own_errors, operands=(own,)
        )
    elif method.startswith("_"):
        return
    elif any(d.split(".")[-1] in ("property", "cached_property") for d in decorators):
        yield _make(
            shown, f"{{0}}.{method}", {**signature, "parameters": []}, source, own_errors, operands=(own,)
        )
    elif any(d.split(".")[-1] in ("classmethod", "staticmethod") for d in decorators):
        skipped = 1 if any(d.split(".")[-1] == "classmethod" for d in decorators) else 0
        parameters = signature["parameters"][skipped:]
        returns = class_name if signature["returns"] == "Self" else signature["returns"]
        yield _make(
            shown,
            f"{module}.{class_name}.{method}({{arguments}})",
            {**signature, "parameters": parameters, "returns": returns},
            source,
            own_errors,
        )
    else:
        yield _make(
            shown,
            f"{{0}}.{method}({{arguments}})",
            {**signature, "parameters": signature["parameters"][1:]},
            source,
            own_errors,
            operands=(own,),
        )


def _make(
    name: str,
    template: str,
    signature: Mapping[str, Any],
    source: Mapping[str, Any] | None,
    own_errors: tuple[str, ...],
    *,
    operands: tuple[TargetParameter, ...] = (),
    builds: str = "",
) -> ProbedTarget:
    about = source or {}
    taken = {operand.name for operand in operands} | {template.split(".")[0]}
    kept: list[TargetParameter] = []
    for parameter in read_parameters(signature["parameters"]):
        if parameter.kind in ("rest", "options"):
            continue
        if not parameter.required and sum(not p.required for p in kept) >= _MAX_OPTIONAL:
            continue
        kept.append(parameter)
    # a stub may write "..." for a default that only the source states
    by_name = {entry["name"]: entry["default"] for entry in about.get("parameters", ())}
    parameters = tuple(
        TargetParameter(
            _free(p.name, taken) if p.kind != "keyword" else p.name,
            p.kind,
            p.annotation,
            by_name.get(p.name, p.default) if p.default == "..." else p.default,
        )
        for p in kept
    )
    return ProbedTarget(
        name=name,
        template=template,
        operands=len(operands),
        parameters=(*operands, *parameters),
        returns=signature["returns"],
        doc=about.get("doc", ""),
        raises=tuple(dict.fromkeys([*about.get("raises", ()), *own_errors])),
        words=tuple(w for w in dict.fromkeys(about.get("words", ())) if _is_telling(w)),
        examples=tuple(tuple(example) for example in about.get("examples", ())),
        builds=builds,
        is_async=bool(about.get("is_async")),
    )


def _is_telling(word: str) -> bool:
    """Whether a text of a docstring is more than markup."""
    return not (word.startswith((":", ">>>", "``", "..")) or word.endswith((":", "::", "``")))


def _variable(class_name: str) -> str:
    """A variable name for an instance of a class."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower().strip("_")
    return f"{snake}_" if keyword.iskeyword(snake) else snake


def _free(name: str, taken: set[str]) -> str:
    """The parameter's name, unless it would hide the module or another variable of the test."""
    name = name.lstrip("_") or "value"
    return (
        f"{name}_" if name in taken or name in ("result", "st", "pytest") or keyword.iskeyword(name) else name
    )
