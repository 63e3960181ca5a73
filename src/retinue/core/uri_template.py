"""URI templates of resources: the part of RFC 6570 that MCP uses.

``{name}`` matches text without ``/``, ``{+name}`` any text. Two variables need text between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

MAX_URI_LENGTH = 8192

_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_AUTHORITY = re.compile(r"//[^/?#{}]+[/?#]")
_SHARED_SCHEMES = frozenset({"http", "https", "ws", "wss", "ftp"})
_VARIABLE = re.compile(r"(\+?)([A-Za-z_][A-Za-z0-9_]*)")


class UriTemplateError(ValueError):
    """The template is malformed; the message describes the fault."""


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """A parsed template; made by `parse_template`."""

    text: str
    names: tuple[str, ...]
    _pattern: re.Pattern[str]

    def match(self, uri: str) -> dict[str, str] | None:
        """The values of the variables in this uri; None when it does not match."""
        match = self._pattern.fullmatch(uri) if len(uri) <= MAX_URI_LENGTH else None
        return None if match is None else {name: unquote(value) for name, value in match.groupdict().items()}


def is_template(uri: str) -> bool:
    """Whether a uri has variables."""
    return "{" in uri


def names_place(template: str) -> bool:
    """Whether a template begins with a scheme and, where many share the scheme, a whole authority.

    A template without them, such as ``{+any}`` or ``https://{host}/x``, matches the URIs of others.
    """
    scheme, mark, rest = template.partition("{")[0].partition(":")
    if not mark or _SCHEME.fullmatch(scheme) is None:
        return False
    return scheme.lower() not in _SHARED_SCHEMES or _AUTHORITY.match(rest) is not None


def place_of(uri: str) -> str:
    """The beginning of a URI that its owner may claim: the scheme, and the authority where many share it."""
    scheme, mark, rest = uri.partition(":")
    authority = _AUTHORITY.match(f"{rest}/") if scheme.lower() in _SHARED_SCHEMES else None
    return scheme + mark + ("" if authority is None else authority[0][:-1])


def fits_template(template: str, uri: str) -> bool:
    """Whether ``uri`` may come from a template of somebody else, of any form of RFC 6570.

    Of a form that `parse_template` does not read, only the text before the first variable is compared.
    """
    try:
        return parse_template(template).match(uri) is not None
    except UriTemplateError:
        return uri.startswith(template.partition("{")[0])


def parse_template(text: str) -> UriTemplate:
    """Parse a template; raises UriTemplateError."""
    names: list[str] = []
    pattern, at = "", 0
    for expression in _EXPRESSION.finditer(text):
        variable = _VARIABLE.fullmatch(expression[1])
        if variable is None:
            raise UriTemplateError(f"{expression[0]} is not a variable; write {{name}} or {{+name}}")
        if variable[2] in names:
            raise UriTemplateError(f"{expression[0]} appears twice")
        if names and expression.start() == at:
            raise UriTemplateError(f"{expression[0]} follows another variable without text between them")
        names.append(variable[2])
        pattern += re.escape(text[at : expression.start()])
        pattern += f"(?P<{variable[2]}>{'.+?' if variable[1] else '[^/]+?'})"
        at = expression.end()
    rest = text[at:]
    if "{" in rest or "}" in rest or "}" in _EXPRESSION.sub("", text):
        raise UriTemplateError("unbalanced brace")
    return UriTemplate(text, tuple(names), re.compile(pattern + re.escape(rest), re.DOTALL))
