"""Pure: maps security schemes to environment variables, and adds credentials to a request.

A requirement is a list of alternatives, each a set of schemes that are all needed (OpenAPI 3.1.1, 4.8.30).
The first alternative whose variables are all set is used.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from retinue.core.errors import InvalidSettingError, NotAuthenticatedError
from retinue.openapi.codec.reader import BrokenReferenceError, follow

SecurityKind = Literal["header", "query", "cookie", "basic", "bearer"]
Alternatives = tuple[tuple[str, ...], ...]
"""Names of schemes; () among the alternatives = without credentials."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_VARIABLE = re.compile(r"[^A-Za-z0-9]+")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """One way to authenticate; ``variables`` are the environment variables that give its credentials.

    ``field`` is the name of the header, query parameter or cookie of an API key.
    """

    name: str
    kind: SecurityKind
    variables: tuple[str, ...]
    field: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class RequestCredentials:
    """The credentials of a request: headers, query fields and cookies."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    cookies: Mapping[str, str]


def parse_schemes(document: Mapping[str, Any], prefix: str) -> tuple[dict[str, SecurityScheme], list[str]]:
    """The supported schemes of a document by name, and a note for each other one.

    ``prefix`` is the name of the import, with which the names of the variables begin.
    """
    components = document.get("components")
    named = components.get("securitySchemes") if isinstance(components, dict) else None
    schemes: dict[str, SecurityScheme] = {}
    notes: list[str] = []
    taken: set[str] = set()
    for name, value in named.items() if isinstance(named, dict) else ():
        try:
            scheme = follow(document, value)
        except BrokenReferenceError as error:
            notes.append(f"security scheme {name} left out: {error.problem}; {error.remedy}")
            continue
        parsed = _parse_scheme(name, scheme if isinstance(scheme, dict) else {}, prefix)
        if parsed is None:
            kind = scheme.get("type") if isinstance(scheme, dict) else None
            notes.append(f"security scheme {name} left out: type {str(kind)[:50]!r} is not supported")
        elif taken & {*parsed.variables}:
            notes.append(
                f"security scheme {name} left out: {parsed.variables[0]} is another scheme's variable"
            )
        else:
            schemes[name] = parsed
            taken |= {*parsed.variables}
    return schemes, notes


def parse_alternatives(value: Any) -> Alternatives:
    """The alternatives of a ``security`` field; () when nothing is required."""
    alternatives = (
        [tuple(alternative) for alternative in value if isinstance(alternative, dict)]
        if isinstance(value, list)
        else []
    )
    return tuple(dict.fromkeys(alternatives))


def choose_credentials(
    what: str,
    alternatives: Alternatives,
    schemes: Mapping[str, SecurityScheme],
    environment: Mapping[str, str],
) -> RequestCredentials:
    """The credentials of a request. Raises NotAuthenticatedError, which names the variables to set."""
    optional = not alternatives
    for names in alternatives:
        optional = optional or not names
        chosen = [schemes[name] for name in names if name in schemes]
        if names and len(chosen) == len(names) and all(_is_given(scheme, environment) for scheme in chosen):
            return _render(chosen, environment)
    if optional:
        return RequestCredentials({}, {}, {})
    raise NotAuthenticatedError(
        f"{what} requires credentials, and none are set", remedy=_remedy(alternatives, schemes)
    )


def origin_of(url: str) -> str:
    """Scheme, host and port of a url of a server, in one form."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def list_variables(alternatives: Alternatives, schemes: Mapping[str, SecurityScheme]) -> tuple[str, ...]:
    """The variables of each alternative, as text: ``A`` or ``A and B``."""
    return tuple(
        " and ".join(variable for name in names for variable in schemes[name].variables)
        for names in alternatives
        if names and all(name in schemes for name in names)
    )


def _remedy(alternatives: Alternatives, schemes: Mapping[str, SecurityScheme]) -> str:
    variables = list_variables(alternatives, schemes)
    if variables:
        return f"set the environment variable {' or '.join(variables)} and start the hub again"
    names = ", ".join(dict.fromkeys(name for alternative in alternatives for name in alternative))
    return f"none: the security schemes {names} are not supported"


def _parse_scheme(name: str, scheme: Mapping[str, Any], prefix: str) -> SecurityScheme | None:
    variable = _variable(prefix, name)
    text = scheme.get("description")
    description = text if isinstance(text, str) else ""
    kind, place, field = scheme.get("type"), scheme.get("in"), scheme.get("name")
    if kind == "apiKey" and isinstance(field, str) and field:
        if place == "header" and _TOKEN.fullmatch(field):
            return SecurityScheme(name, "header", (variable,), field, description)
        if place == "cookie" and _TOKEN.fullmatch(field):
            return SecurityScheme(name, "cookie", (variable,), field, description)
        return SecurityScheme(name, "query", (variable,), field, description) if place == "query" else None
    method = str(scheme.get("scheme")).lower()
    if kind == "http" and method == "basic":
        both = (f"{variable}_USERNAME", f"{variable}_PASSWORD")
        return SecurityScheme(name, "basic", both, description=description)
    if kind in ("oauth2", "openIdConnect") or (kind == "http" and method == "bearer"):
        return SecurityScheme(name, "bearer", (variable,), description=description)
    return None


def _variable(prefix: str, name: str) -> str:
    words = _NO_VARIABLE.sub("_", f"{prefix}_{_WORD_STARTS.sub('_', name)}").strip("_").upper()
    return f"_{words}" if words[:1].isdigit() else words or "CREDENTIALS"


def _is_given(scheme: SecurityScheme, environment: Mapping[str, str]) -> bool:
    # Some services ask for an empty password. An empty user name or key counts as not given.
    return all(name in environment for name in scheme.variables) and environment[scheme.variables[0]] != ""


def _render(schemes: Iterable[SecurityScheme], environment: Mapping[str, str]) -> RequestCredentials:
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    cookies: dict[str, str] = {}
    for scheme in schemes:
        values = [environment[name] for name in scheme.variables]
        if scheme.kind == "basic":
            pair = base64.b64encode(":".join(values).encode()).decode()
            headers["authorization"] = f"Basic {pair}"
            continue
        value = _check_value(scheme.variables[0], values[0])
        if scheme.kind == "bearer":
            headers["authorization"] = f"Bearer {value}"
        else:
            fields = {"header": headers, "query": query, "cookie": cookies}[scheme.kind]
            fields[scheme.field.lower() if scheme.kind == "header" else scheme.field] = value
    return RequestCredentials(headers, query, cookies)


def _check_value(name: str, value: str) -> str:
    # A line break would end the header; its value is not shown, because it is a secret.
    if not value.isprintable() or not value.isascii():
        raise InvalidSettingError(
            name, "its value has a character that is no printable ASCII", remedy="set it without line breaks"
        )
    return value.strip()
