"""What a client without the right token is told: which token, and where to get one (RFC 6750, RFC 9728).

Where an authorization server is named, each refusal of a token points to the metadata of the resource,
from which MCP clients find that server by themselves (MCP 2025-11-25, "Authorization").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.types import Message, Send

from retinue.core.errors import AccessError, InsufficientScopeError

METADATA_PATH = "/.well-known/oauth-protected-resource"

DISCOVERY_PATHS = ("/.well-known/oauth-", "/.well-known/openid-configuration")
"""How the paths begin at which OAuth clients look for who gives out tokens (RFC 8414, RFC 9728, OpenID).

Whoever looks there has no token yet: what is not here must be missing, not refused.
"""


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """The doors of a process as a resource of OAuth.

    ``url`` is their public base; None = as the client named it. ``scopes`` are what it may ask for.
    """

    authorization_servers: Sequence[str]
    scopes: Sequence[str]
    url: str | None = None

    def metadata(self, base: str, path: str) -> dict[str, Any]:
        """The document about the door at ``path`` ("" = all of them)."""
        return {
            "resource": self._base(base) + _quoted(path),
            "authorization_servers": list(self.authorization_servers),
            "scopes_supported": list(self.scopes),
            "bearer_methods_supported": ["header"],
        }

    def challenge(self, base: str, path: str, error: AccessError, *, token_sent: bool) -> str:
        """The ``WWW-Authenticate`` of a refusal at ``path``.

        Whoever sent no token is told of no error (RFC 6750, 3.1), only what to ask for.
        """
        door = "" if path == "/" else _quoted(path)
        words = {"resource_metadata": self._base(base) + METADATA_PATH + door}
        if isinstance(error, InsufficientScopeError):
            words |= {"error": "insufficient_scope", "scope": " ".join(error.scopes)}
        elif token_sent:
            words["error"] = "invalid_token"
        else:
            words["scope"] = self.scopes[0]
        if "error" in words:
            words["error_description"] = _plain(error.message)
        return "Bearer " + ", ".join(f'{word}="{value}"' for word, value in words.items())

    def _base(self, base: str) -> str:
        return (self.url or base).rstrip("/")


def challenging(send: Send, challenge: Callable[[], str | None]) -> Send:
    """``send`` that says more where a door itself answers 401 with the bare word ``Bearer``."""

    async def send_challenged(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == _UNAUTHORIZED:
            told = (challenge() or "Bearer").encode()
            message["headers"] = [
                (name, told if (name, value) == _BARE else value) for name, value in message["headers"]
            ]
        await send(message)

    return send_challenged


_UNAUTHORIZED = 401
_BARE = (b"www-authenticate", b"Bearer")


def _quoted(path: str) -> str:
    return quote(path, safe="/:@!$&'()*+,;=~-._")


def _plain(text: str) -> str:
    """What may stand between the quotes (RFC 6750, 3)."""
    return "".join(c for c in text if " " <= c <= "~" and c not in '"\\')
