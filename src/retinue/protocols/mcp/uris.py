"""Pure: uri templates of resources, as much of RFC 6570 as both ends of MCP use.

``{name}`` stands for a part without ``/``, ``{+name}`` for one that may hold some; two variables need
text between them, or no uri would say where one ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

MAX_URI_LENGTH = 8192

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_VARIABLE = re.compile(r"(\+?)([A-Za-z_][A-Za-z0-9_]*)")


class UriTemplateError(ValueError):
    """The template is malformed; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """A template that was read; made by `parse_template`."""

    text: str
    names: tuple[str, ...]
    _pattern: re.Pattern[str]

    def match(self, uri: str) -> dict[str, str] | None:
        """The values that this uri gives the variables; None when it does not fit."""
        found = self._pattern.fullmatch(uri) if len(uri) <= MAX_URI_LENGTH else None
        return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}

    def expand(self, values: Mapping[str, str]) -> str:
        """The uri with these values; raises KeyError for a missing one."""

        def fill(expression: re.Match[str]) -> str:
            name = expression[1]
            return quote(values[name.lstrip("+")], safe="/" if name.startswith("+") else "")

        return _EXPRESSION.sub(fill, self.text)


def is_template(uri: str) -> bool:
    """Whether a uri has variables."""
    return "{" in uri


def parse_template(text: str) -> UriTemplate:
    """Read a template; raises UriTemplateError."""
    names: list[str] = []
    pattern, at = "", 0
    for expression in _EXPRESSION.finditer(text):
        variable = _VARIABLE.fullmatch(expression[1])
        if variable is None:
            raise UriTemplateError(f"{expression[0]} is no variable; write {{name}} or {{+name}}")
        if variable[2] in names:
            raise UriTemplateError(f"{expression[0]} stands there twice")
        if names and expression.start() == at:
            raise UriTemplateError(f"{expression[0]} follows another variable without text between them")
        names.append(variable[2])
        pattern += re.escape(text[at : expression.start()])
        pattern += f"(?P<{variable[2]}>{'.+?' if variable[1] else '[^/]+?'})"
        at = expression.end()
    rest = text[at:]
    if "{" in rest or "}" in rest or "}" in _EXPRESSION.sub("", text):
        raise UriTemplateError("a brace stands alone")
    return UriTemplate(text, tuple(names), re.compile(pattern + re.escape(rest), re.DOTALL))
