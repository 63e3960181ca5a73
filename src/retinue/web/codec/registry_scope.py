"""Pure codec of scopes and challenges of registries (Docker "Token Authentication Specification").

A scope is ``repository:<name>:<actions>`` or ``registry:catalog:*``. A challenge names the scope of the
rejected request, and a client asks the token server for a token of this scope.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REALM = "retinue"
BASIC_CHALLENGE = f'Basic realm="{REALM}"'
CATALOG = "registry:catalog"

MAX_SCOPES = 50
MAX_RESOURCE_LENGTH = 300

ACTIONS = frozenset({"pull", "push", "delete"})
ALL = frozenset({"*"})

Scopes = Mapping[str, frozenset[str]]
"""Actions by resource, such as ``repository:agents/plan`` or `CATALOG`."""

_REPOSITORY = re.compile(r"/v2/(.+)/(?:tags|manifests|blobs)/")
_CATALOG_ENDS = ("/_catalog", "/_manifests")
_READS = frozenset({"GET", "HEAD"})
_ACTION = re.compile(r"\*|[a-z]{1,20}")


def scope_of(method: str, path: str) -> str:
    """The scope that a client requests for a request, as docker-registry names it; "" for ``/v2/`` itself."""
    match = _REPOSITORY.search(path)
    if match is None:
        return f"{CATALOG}:*" if path.endswith(_CATALOG_ENDS) else ""
    actions = "pull" if method in _READS else "delete" if method == "DELETE" else "pull,push"
    return f"repository:{match[1]}:{actions}"


def parse_scopes(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """The actions by resource of scopes; each text may hold several, separated by spaces.

    Unreadable scopes, and those beyond `MAX_SCOPES`, are left out.
    """
    scopes: dict[str, frozenset[str]] = {}
    for scope in [scope for text in texts for scope in text.split()][:MAX_SCOPES]:
        resource, _, actions = scope.rpartition(":")
        names = frozenset(actions.split(","))
        if ":" in resource and len(resource) <= MAX_RESOURCE_LENGTH and all(map(_ACTION.fullmatch, names)):
            scopes[resource] = scopes.get(resource, frozenset()) | names
    return scopes


def is_within(method: str, path: str, scopes: Scopes) -> bool:
    """Whether a token with these scopes is good for a request; every token is good for ``/v2/`` itself."""
    resource, _, actions = scope_of(method, path).rpartition(":")
    # a write is asked for as pull,push, and needs push
    return not resource or bool(scopes.get(resource, frozenset()) & {actions.rpartition(",")[2], "*"})


def render_challenge(realm: str, scope: str, error: str = "") -> str:
    """Both challenges as one header field: Basic, then Bearer with the URL of the token server.

    Clients that read only one challenge of a field, as those in Go do, use Basic. ``error`` is a code of RFC
    6750, section 3.1.
    """
    parameters = {"realm": realm, "service": REALM, "scope": scope, "error": error}
    bearer = ",".join(f'{name}="{_to_quotable(value)}"' for name, value in parameters.items() if value)
    return f"{BASIC_CHALLENGE}, Bearer {bearer}"


def _to_quotable(text: str) -> str:
    """Keep only the characters allowed in a quoted value (RFC 6750, section 3)."""
    return "".join(c for c in text if " " <= c <= "~" and c not in '"\\')
