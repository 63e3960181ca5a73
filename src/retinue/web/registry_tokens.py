"""Short-lived tokens of the registry endpoint, for clients that support no Basic authentication.

A token holds the credentials of its caller and the scopes for which it is good, encrypted with the mesh key.
So it ends with the token from which it was made, no process stores it, and a restart keeps it valid. It is
accepted at paths of the registry only, and not by the token endpoint itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.core.errors import NotAuthenticatedError
from retinue.web.codec.registry_scope import Scopes, render_challenge, scope_of
from retinue.web.sealed_tokens import open_token, seal_token

TOKEN_PATH = "/v2/token"  # noqa: S105 - a path
PREFIX = "rtnr_"
LIFETIME_S = 300
CLOCK_SKEW_S = 30

_PURPOSE = "registry token"


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """The content of a token: the credentials, b"" for nobody, and the scopes."""

    token: bytes
    scopes: Scopes


class RegistryTokens:
    """Issues and opens the tokens of one mesh, and renders the challenges that lead to them.

    ``url`` is the public base URL of the process; None means the one in the request. ``clock`` gives seconds
    since 1970.
    """

    def __init__(self, key: bytes, url: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._url = url
        self._clock = clock

    def issue(self, token: bytes, scopes: Scopes) -> tuple[str, float]:
        """A token for the caller with this ``token`` (b"" = nobody), and the time at which it was made."""
        now = self._clock()
        content = {
            "token": token.decode("latin-1"),
            "scopes": {resource: sorted(actions) for resource, actions in scopes.items()},
            "expires": now + LIFETIME_S,
        }
        return PREFIX + seal_token(orjson.dumps(content), self._key, _PURPOSE), now

    def open(self, token: bytes) -> RegistryLogin:
        """The content of a token of the registry. Raises NotAuthenticatedError."""
        sealed = token.removeprefix(PREFIX.encode()).decode("latin-1")
        plain = open_token(sealed, self._key, _PURPOSE)
        if plain is None:
            raise NotAuthenticatedError("this token is not one of this registry", remedy="request a new one")
        content: dict[str, Any] = orjson.loads(plain)
        left_s = float(content["expires"]) - self._clock()
        # a token of the future was made before the clock was set back
        if not 0 < left_s <= LIFETIME_S + CLOCK_SKEW_S:
            raise NotAuthenticatedError("this registry token has expired", remedy="request a new one")
        scopes = {resource: frozenset(actions) for resource, actions in content["scopes"].items()}
        return RegistryLogin(content["token"].encode("latin-1"), scopes)

    def challenge(self, base: str, method: str, path: str, error: str = "") -> str:
        """The ``WWW-Authenticate`` header of a rejected request; ``base`` is the base URL in the request."""
        realm = (self._url or base).rstrip("/") + TOKEN_PATH
        return render_challenge(realm, scope_of(method, path), error)


def is_registry_token(token: bytes) -> bool:
    """Whether a token has the form of those that `RegistryTokens` issues."""
    return token.startswith(PREFIX.encode())
