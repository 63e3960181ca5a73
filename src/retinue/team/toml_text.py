"""Values as the text of TOML."""

from __future__ import annotations

from collections.abc import Mapping

import orjson


def render_value(value: object) -> str:
    """A string, number, boolean, list or table in one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{quote(str(key))} = {render_value(v)}" for key, v in value.items()) + " }"
    return quote(value)


def quote(value: object) -> str:
    """A value of JSON; strings, numbers and lists of JSON are those of TOML, but for DEL."""
    return orjson.dumps(value).decode().replace("\x7f", "\\u007f")
