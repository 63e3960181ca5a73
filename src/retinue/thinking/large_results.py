"""Large results of calls: what a run records, and what the model reads, in their place.

The whole text is kept as an artifact. In its place stand its beginning, its size, its shape and its link.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from retinue.core.artifact_links import LINK_FIELD, TEXT_PREFIX
from retinue.core.parts import find_parts

KEEP_RESULTS_BYTES = 20_000
"""A larger text is kept as an artifact, unless the step says otherwise."""

CUT = "retinue/cut"
"""The key of the value that is recorded in place of a large one."""

_CUT_FORM: Mapping[str, type] = {"size_bytes": int, "shape": str, "head": str}

_HEAD_BYTES = 8_000

_LINE_BYTES = 1_000
"""A larger object or list is written with a line for each member."""

_MAX_LEVELS = 8


def is_large(value: Any, max_bytes: int = KEEP_RESULTS_BYTES) -> bool:
    """Whether a value has more text than a run records.

    Images and files are no text: their own limit holds.
    """
    if find_parts(value):
        return False
    if isinstance(value, str):
        return len(value) > max_bytes or len(value.encode("utf-8", "surrogatepass")) > max_bytes
    return len(orjson.dumps(value)) > max_bytes


def write_text(value: Any) -> str:
    """The text of a large value: a text itself, others as JSON that can be read by lines."""
    return value if isinstance(value, str) else _write_json(value, _MAX_LEVELS)


def _write_json(value: Any, levels: int) -> str:
    """JSON in which each member of a large object or list has a line of its own."""
    text = orjson.dumps(value).decode()
    if not levels or len(text) <= _LINE_BYTES:
        return text
    if isinstance(value, Mapping):
        rows = [f"{orjson.dumps(key).decode()}: {_write_json(value[key], levels - 1)}" for key in value]
        return "{\n" + ",\n".join(rows) + "\n}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(_write_json(item, levels - 1) for item in value) + "\n]"
    return text


def cut_value(
    value: Any, text: str, max_bytes: int, link: Mapping[str, Any] | None, problem: str = ""
) -> dict[str, Any]:
    """What is recorded in place of a value with this text; ``problem`` is why there is no link."""
    whole = text.encode("utf-8", "surrogatepass")
    head = whole[: min(_HEAD_BYTES, max_bytes)].decode("utf-8", "ignore")
    cut: dict[str, Any] = {"size_bytes": len(whole), "shape": describe_shape(value), "head": head}
    if link is not None:
        cut["link"] = dict(link)
    elif problem:
        cut["problem"] = problem
    return {CUT: cut}


def describe_shape(value: Any) -> str:
    """The outermost form of a value in a few words."""
    if isinstance(value, Mapping):
        keys = ", ".join(list(map(str, value))[:20])
        return f"an object with the keys {keys}{', …' if len(value) > 20 else ''}"
    if isinstance(value, list):
        return f"a list of {len(value):,} items"
    return f"a text of {len(value):,} characters" if isinstance(value, str) else "a value"


def write_cut(value: Any) -> str:
    """The text of a value that was cut, for the model; "" for another value."""
    cut = value.get(CUT) if isinstance(value, Mapping) else None
    # an agent may return anything under this key
    if not isinstance(cut, Mapping) or not _CUT_FORM.items() <= {key: type(cut[key]) for key in cut}.items():
        return ""
    link = cut.get("link")
    if isinstance(link, Mapping):
        rest = f"read further parts of {TEXT_PREFIX}{link.get(LINK_FIELD)} with read_result"
    else:
        rest = cut.get("problem") or "the rest is not kept"
    head_bytes = len(cut["head"].encode("utf-8", "surrogatepass"))
    note = f"cut: {cut['size_bytes']:,} bytes in all, {cut['shape']}"
    return f"({note}; the first {head_bytes:,} bytes follow; {rest})\n{cut['head']}"
