"""Logs out at an imported MCP server: its tokens are revoked (RFC 7009) where the server offers that."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

from retinue.core.errors import RetinueError
from retinue.runtime.imports.browser_login import may_be_private
from retinue.runtime.imports.logins import Login, LoginFile, client_of
from retinue.settings import Settings
from retinue.web.addresses import is_loopback_url
from retinue.web.http_client import HttpClient
from retinue.web.transport import TransportError

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Revocation:
    """The result of a logout; ``problem`` says why the tokens were not revoked, "" if they were."""

    problem: str = ""


async def log_out(file: LoginFile, settings: Settings) -> Revocation | None:
    """Revoke the tokens of a login, and remove it from this machine; None if there is no login.

    Where the server cannot be told, the login is removed all the same. Raises StateError.
    """
    login = file.read()
    if login is None:
        file.forget()
        return None
    try:
        async with HttpClient(allow_private=await may_be_private(login.url, settings)) as http:
            return await revoke(login, http)
    finally:
        file.forget()


async def revoke(login: Login, http: HttpClient) -> Revocation:
    """Revoke refresh token and access token."""
    endpoint = str((login.authorization_server or {}).get("revocation_endpoint") or "")
    if not endpoint:
        return Revocation("its server offers no revocation")
    host = urlsplit(endpoint).netloc
    if not endpoint.startswith("https://") and not is_loopback_url(endpoint):
        return Revocation(f"the revocation endpoint at {host} is not https")
    for kind in ("refresh_token", "access_token"):
        token = login.tokens.get(kind)
        if not token:
            continue
        form, headers = _authenticate(client_of(login), {"token": str(token), "token_type_hint": kind})
        try:
            reply = await http.request(
                "POST",
                endpoint,
                headers={"content-type": "application/x-www-form-urlencoded", **headers},
                body=urlencode(form).encode(),
                timeout_s=TIMEOUT_S,
                max_response_bytes=64 * 1024,
                what="a logout",
            )
        except TransportError as error:
            return Revocation(f"{host}: {error.cause}")
        except RetinueError as error:
            return Revocation(f"{host}: {error.message}")
        if reply.status != 200:
            return Revocation(f"{host} answers with status {reply.status}")
    return Revocation()


def _authenticate(
    client: Mapping[str, object], form: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers of a request with the client's own way to authenticate."""
    client_id, secret = str(client["client_id"]), client.get("client_secret")
    if not secret:
        return {**form, "client_id": client_id}, {}
    if client.get("token_endpoint_auth_method") == "client_secret_post":
        return {**form, "client_id": client_id, "client_secret": str(secret)}, {}
    pair = f"{quote(client_id, safe='')}:{quote(str(secret), safe='')}"
    return form, {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}
