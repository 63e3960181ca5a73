"""Writes calls and values as Python source, for the scripts and `drafting`. Standard library only."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import math
from typing import Any


def write_call(target: dict[str, Any], values: dict[str, Any], omit_defaults: bool = False) -> str | None:
    """The call of a target as source.

    ``target`` has ``template``, ``operands`` and ``params`` ({name, kind, default}); ``values`` maps each
    parameter's name to source. With ``omit_defaults`` an argument equal to its default is left out.
    """
    params = target["params"]
    operands = [values[param["name"]] for param in params[: target["operands"]]]
    arguments = []
    by_name = False
    for param in params[target["operands"] :]:
        source = values.get(param["name"])
        if source is None or (omit_defaults and param["default"] is not None and source == param["default"]):
            by_name = True
            continue
        # a stub may name a parameter differently from the source, so positional arguments are preferred
        if param["kind"] == "keyword" or by_name:
            if param["kind"] == "positional":
                return None
            arguments.append(param["given_name"] + "=" + source)
        else:
            arguments.append(source)
    call: str = target["template"].replace("{arguments}", ", ".join(arguments))
    for index, operand in enumerate(operands):
        call = call.replace("{%d}" % index, operand)  # noqa: UP031
    for wrapper in target.get("wrappers", ()):
        call = wrapper.replace("{call}", call)
    return call


def write_value(value: Any, made: Any = None) -> str | None:
    """A literal for a value, or None; ``made`` maps ids of built objects to their source."""
    if made and id(value) in made:
        source: str | None = made[id(value)][1]
        return source
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes) or value is Ellipsis:
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else 'float("{}")'.format(value)  # noqa: UP032
    if kind is complex and math.isfinite(value.real) and math.isfinite(value.imag):
        return repr(value)
    if kind is bytearray:
        return repr(value)
    if kind in (list, tuple, set, frozenset):
        return write_collection(value, kind, made)
    if kind is dict:
        pairs = [f"{write_value(k, made)}: {write_value(v, made)}" for k, v in value.items()]
        written = [write_value(part, made) for pair in value.items() for part in pair]
        return None if None in written else "{" + ", ".join(pairs) + "}"
    return write_object(value, kind)


def write_collection(value: Any, kind: Any, made: Any) -> str | None:
    written = [write_value(part, made) for part in value]
    parts = [part for part in written if part is not None]
    if len(parts) < len(written):
        return None
    if kind in (set, frozenset):
        inner = "{" + ", ".join(sorted(parts)) + "}" if parts else ""
        return inner if kind is set and parts else kind.__name__ + "(" + inner + ")"
    if kind is list:
        return "[" + ", ".join(parts) + "]"
    return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"


def write_object(value: Any, kind: Any) -> str | None:
    """Values of the standard library whose repr is their constructor."""
    module = kind.__module__
    if kind is fractions.Fraction or (kind.__name__ == "Fraction" and module == "fractions"):
        return "fractions.Fraction({}, {})".format(value.numerator, value.denominator)  # noqa: UP032
    if kind is decimal.Decimal:
        return 'decimal.Decimal("{}")'.format(value)  # noqa: UP032
    if module == datetime.__name__ and kind.__name__ in ("date", "datetime", "time", "timedelta"):
        return repr(value) if getattr(value, "tzinfo", None) is None else None
    if kind in (range, slice):
        return repr(value)
    if isinstance(value, enum.Enum) and "." not in kind.__qualname__:
        return "{}.{}.{}".format(module, kind.__name__, value.name)  # noqa: UP032
    if (isinstance(value, type) or callable(value)) and getattr(value, "__module__", "") == "builtins":
        return str(value.__name__)
    return None
