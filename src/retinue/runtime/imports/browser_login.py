"""Logs a person in at an imported MCP server, by the browser and a callback on this machine."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from retinue.core.errors import NotAuthenticatedError, RetinueError
from retinue.runtime.imports.logins import (
    CLIENT_NAME,
    Login,
    Memory,
    drive,
    login_of,
    probe_request,
    resolve_secret,
)
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.web.addresses import find_refusal, is_loopback_url
from retinue.web.http_client import HttpClient
from retinue.web.transport import TransportError

if TYPE_CHECKING:
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthMetadata

CALLBACK_PATH = "/callback"
_MAX_HEAD_BYTES = 16 * 1024
_HEAD_WITHIN_S = 10.0
_PAGE = (
    "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\n"
    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Redirect:
    """The parameters with which the authorization server sent the browser back."""

    code: str
    state: str
    iss: str | None


class Callback:
    """Receives the one redirect with the right ``state``; every other request is refused."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}{CALLBACK_PATH}"
        self.state: str | None = None
        self._result: asyncio.Future[Redirect] = asyncio.get_running_loop().create_future()

    async def wait(self) -> Redirect:
        """The redirect. Raises NotAuthenticatedError if the login was refused."""
        return await self._result

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection of a browser."""
        try:
            async with asyncio.timeout(_HEAD_WITHIN_S):
                line = await reader.readline()
                status, text = self._take(line)
                page = f"<!doctype html><title>Retinue</title><p>{escape(text)}</p>".encode()
                writer.write(_PAGE.format(status=status, length=len(page)).encode() + page)
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):
            # a browser that connects ahead of need, or no browser at all
            return
        finally:
            writer.close()

    def _take(self, line: bytes) -> tuple[str, str]:
        method, _, rest = line.decode("latin-1").partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        if method != "GET" or target.path != CALLBACK_PATH:
            return "404 Not Found", "There is nothing here."
        parameters = {key: values[0] for key, values in parse_qs(target.query).items() if len(values) == 1}
        if self.state is None or parameters.get("state") != self.state:
            return (
                "400 Bad Request",
                "This login was not begun here: its state is another one. It was refused.",
            )
        if self._result.done():
            return "400 Bad Request", "This login has ended already."
        if "error" in parameters:
            reason = parameters.get("error_description") or parameters["error"]
            self._result.set_exception(_refused(f"the login was refused: {reason[:200]}"))
            return "200 OK", "The login was refused. You can close this window."
        if "code" not in parameters:
            return "400 Bad Request", "The code is missing."
        self._result.set_result(Redirect(parameters["code"], parameters["state"], parameters.get("iss")))
        return "200 OK", "You can close this window and go back to the terminal."


@asynccontextmanager
async def listening() -> AsyncIterator[Callback]:
    """A callback on a free port of this machine."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        callback = Callback(bound.getsockname()[1])
        server = await asyncio.start_server(callback.answer, sock=bound, limit=_MAX_HEAD_BYTES)
        try:
            yield callback
        finally:
            server.close()
            await server.wait_closed()


async def log_in(
    name: str,
    table: ImportTable,
    settings: Settings,
    own: Mapping[str, str],
    *,
    show: Callable[[str], None],
    timeout_s: float,
    scope: str | None = None,
) -> Login:
    """Log in at the server of an import; ``show`` presents the page of the login to the person.

    ``scope`` are the rights to ask for, separated by spaces; None = the scopes that the server names. Raises
    NotAuthenticatedError with what refused the login, or because the server needs none.
    """
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

    url = table.url
    assert url is not None, "only servers over HTTP log in"
    own_client = _given_client(table, own)
    keep = Memory(client=own_client)
    async with listening() as callback:
        metadata = OAuthClientMetadata.model_validate(
            {
                "client_name": CLIENT_NAME,
                "redirect_uris": [callback.url],
                "grant_types": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_method": "none",
            }
        )

        async def open_page(page: str) -> None:
            _check_pkce(provider.context.oauth_metadata, provider.context.auth_server_url or url)
            parts = urlsplit(page)
            if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback_url(page)):
                raise _refused(f"the page of the login is not https: {parts.scheme}://{parts.netloc}")
            callback.state = parse_qs(parts.query)["state"][0]
            show(page)

        async def wait() -> AuthorizationCodeResult:
            try:
                async with asyncio.timeout(timeout_s):
                    redirect = await callback.wait()
            except TimeoutError:
                raise _refused(f"nobody logged in within {timeout_s:g} s") from None
            return AuthorizationCodeResult(code=redirect.code, state=redirect.state, iss=redirect.iss)

        provider = OAuthClientProvider(
            url, metadata, keep, open_page, wait, client_metadata_url=table.client_metadata_url
        )
        headers = {key: value for key, value in table.headers.items() if key.lower() != "authorization"}
        async with (
            _refusing(provider, url),
            HttpClient(allow_private=await may_be_private(url, settings)) as http,
            aclosing(drive(provider, http, probe_request(url, headers), scope=scope)) as flow,
        ):
            async for request, number in flow:
                if (facts := provider.context.oauth_metadata) is not None:
                    _check_pkce(facts, str(facts.issuer))
                # the first request again: the flow has its tokens
                if number and str(request.url) == url and keep.tokens is not None:
                    break
    if keep.tokens is None:
        raise NotAuthenticatedError(f"{name} asks for no login", remedy="see its state: retinue imports")
    login = login_of(provider, keep, url)
    if table.client_secret is None:
        return login
    # the reference is stored, not the value that it stands for
    client = {key: value for key, value in login.client.items() if key != "client_secret"}
    return replace(login, client=client, client_secret=table.client_secret)


@asynccontextmanager
async def _refusing(provider: OAuthClientProvider, url: str) -> AsyncIterator[None]:
    """Raise what ends a login at the server ``url`` as a NotAuthenticatedError with its remedy."""
    from mcp.client.auth import OAuthFlowError, OAuthRegistrationError
    from pydantic import ValidationError

    try:
        yield
    except OAuthRegistrationError as error:
        # without metadata the SDK asks the server of the import itself, whose answer says nothing
        _check_pkce(provider.context.oauth_metadata, provider.context.auth_server_url or url)
        raise NotAuthenticatedError(
            f"the authorization server registers no client by itself: {_describe(error)}",
            remedy="nothing was stored; register one there by hand, with a redirect to "
            "http://127.0.0.1/callback, and import again with --replace --client-id ID (and "
            "--client-secret '${VARIABLE}')",
        ) from error
    except OAuthFlowError as error:
        raise _refused(_describe(error)) from error
    except ValidationError as error:
        raise _refused("the authorization server sent a document of another form") from error
    except TransportError as error:
        raise _refused(f"{error.origin}: {error.cause}") from error


def _check_pkce(metadata: OAuthMetadata | None, server: str) -> None:
    """Raise NotAuthenticatedError unless the server says that it checks the proof of a code (PKCE, S256).

    Without it a code that is stolen on its way can be used; MCP wants such a server to be refused.
    """
    methods = None if metadata is None else metadata.code_challenge_methods_supported
    if methods is None or "S256" not in methods:
        problem = "does not name" if methods is None else f"names {', '.join(methods)[:100]}, not S256, as"
        raise NotAuthenticatedError(
            f"the authorization server {server[:200]} {problem} code_challenge_methods_supported in its "
            "metadata: it is not known to support PKCE, which MCP requires",
            remedy="nothing was stored; ask its operator for S256, or import again with a token: --header "
            "or --token-env",
        )


def has_browser() -> bool:
    """Whether a browser may be opened here."""
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(key) for key in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )


def show_page(page: str, echo: Callable[[str], None], *, browser: bool) -> None:
    """Print the address of the login, and open it where there is a browser."""
    echo(f"log in at: {page}")
    if browser and has_browser():
        # in a thread, because some browsers are waited for, and the login needs this one
        threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()


def _given_client(table: ImportTable, own: Mapping[str, str]) -> dict[str, Any] | None:
    """The OAuth client that a person has registered by hand."""
    if table.client_id is None:
        return None
    client: dict[str, Any] = {"client_id": table.client_id, "token_endpoint_auth_method": "none"}
    if table.client_secret is not None:
        secret = resolve_secret(table.client_secret, own)
        client |= {"client_secret": secret, "token_endpoint_auth_method": "client_secret_basic"}
    return client


async def may_be_private(url: str, settings: Settings) -> bool:
    """Whether the addresses that the server names may be private: only if the server's own is."""
    if not settings.allow_private_urls:
        return False
    host = urlsplit(url).hostname or ""
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _refused(f"{host}: {error.strerror or error}") from error
    return any(find_refusal(str(address[4][0]), allow_private=False) is not None for address in addresses)


def _describe(error: Exception) -> str:
    """The SDK's message without the server's answer to a token request."""
    from mcp.client.auth import OAuthTokenError

    text = str(error)
    if isinstance(error, OAuthTokenError):
        return f"the authorization server gave no token: {text.partition(':')[0]}"
    return text.splitlines()[0][:300] if text else type(error).__name__


def _refused(problem: str) -> RetinueError:
    return NotAuthenticatedError(problem, remedy="nothing was stored; try again: retinue imports login NAME")
