"""Builds access control from the settings: endpoint checks, token readers and the access lists of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError
from retinue.mesh.permissions import Access, AccessRule
from retinue.settings import Settings
from retinue.settings_tables import AccessTable, AuthTable, EndpointTable
from retinue.storage.state import State
from retinue.web.addresses import check_public_url
from retinue.web.http_client import HttpClient
from retinue.web.issued_tokens import SCOPES, KnownTokens
from retinue.web.mesh_tokens import MeshBearer
from retinue.web.metrics_endpoint import PATH as METRICS_PATH
from retinue.web.public_address import PublicAddress
from retinue.web.rejections import ProtectedResource
from retinue.web.security import (
    LOCAL_TOKEN,
    OWNER_TOKEN,
    PROBE_PATHS,
    PathExceptions,
    SecurityMiddleware,
    SecuritySettings,
    TokenReader,
    Tokens,
    check_bind,
)


def check_address(host: str, auth: AuthTable, *, insecure_ok: bool) -> None:
    """Reject a non-loopback address without token authentication; raises InvalidSettingError."""
    check_bind(host, has_auth=not auth.anonymous, insecure_ok=insecure_ok)


def security_settings(settings: Settings, host: str, exceptions: PathExceptions) -> SecuritySettings:
    """The settings of the security middleware of a process that listens at ``host``.

    ``exceptions`` are those of its parts, such as the paths of a KOI node that checks signatures.
    """
    return SecuritySettings(
        host=host,
        hosts=settings.doors.hosts,
        origins=settings.doors.origins,
        max_body_bytes=settings.limits.body_bytes,
        any_media_type=exceptions.any_media_type,
        anonymous=settings.auth.anonymous,
        open_prefixes=exceptions.open_prefixes,
        resource=protected_resource(settings.auth),
        open_paths=PROBE_PATHS
        | ({METRICS_PATH} if settings.metrics.public else set())
        | exceptions.open_paths,
    )


def endpoint_checks(
    app: ASGIApp,
    settings: Settings,
    state: State,
    http: HttpClient,
    *,
    host: str,
    url: str = "",
    exceptions: PathExceptions,
    tokens: Mapping[str, Principal] | None = None,
) -> SecurityMiddleware:
    """The app behind the security checks of a process that listens at ``host`` and is advertised at ``url``.

    ``exceptions`` are those of `security_settings`. ``tokens`` are accepted besides the state's token.
    """
    known = Tokens({**(tokens or {}), state.local_token(): LOCAL_TOKEN, state.owner_token(): OWNER_TOKEN})
    checked = security_settings(settings, host, exceptions)
    return SecurityMiddleware(app, checked, known, token_readers(settings, state, http, url))


def behind_proxies(app: ASGIApp, doors: EndpointTable, url: str) -> ASGIApp:
    """The app as proxies reach it: the path of ``url`` is a prefix, and named proxies tell addresses."""
    prefix, proxies = urlsplit(url).path.rstrip("/"), doors.proxies
    return PublicAddress(app, prefix, proxies) if prefix or proxies else app


def advertised(settings: Settings, url: str | None) -> Settings:
    """The settings of a process that others reach at ``url``: its host is one of the process's names."""
    if url is None:
        return settings
    doors, auth = settings.doors, settings.auth
    host = urlsplit(url).hostname or ""
    changed = {"doors": doors.model_copy(update={"hosts": (*doors.hosts, host)})}
    if auth.resource is None:
        return settings.model_copy(update={**changed, "auth": auth.model_copy(update={"resource": url})})
    return settings.model_copy(update=changed)


def check_advertised(url: str | None) -> str | None:
    """The URL of an option ``--advertise``; raises InvalidSettingError."""
    try:
        return None if url is None else check_public_url(url)
    except ValueError as error:
        remedy = "such as --advertise https://mesh.example"
        raise InvalidSettingError("--advertise", str(error), remedy=remedy) from error


def warn_of_wildcard(host: str, advertise: str | None, echo: Callable[[str], None]) -> None:
    """Say that a process which listens on every address has told others the one of this machine only."""
    if advertise is None and host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        echo(
            f"warning: it listens on {host}, but tells other machines 127.0.0.1; pass --advertise URL with "
            "the address at which they reach it"
        )


def token_readers(settings: Settings, state: State, http: HttpClient, url: str = "") -> list[TokenReader]:
    """Readers of the tokens accepted besides the state's own: issued tokens, mesh tokens, JWTs."""
    parts = urlsplit(url)
    # the host is a name of this process only if it was advertised, see `advertised`
    own_place = parts.netloc if parts.hostname in settings.doors.hosts else ""
    readers: list[TokenReader] = [KnownTokens(state.keys), MeshBearer(state.mesh_key(), own_place=own_place)]
    auth = settings.auth
    if auth.issuer is not None and (auth.jwks_url or auth.jwks_file):
        from retinue.web.jwt_tokens import JwtReader, JwtSettings  # with cryptography: 13 MB

        jwt = JwtSettings(
            issuer=auth.issuer,
            audiences=auth.audience,
            jwks_url=auth.jwks_url,
            jwks_file=auth.jwks_file,
            scopes_claim=auth.scopes_claim,
            groups_claim=auth.groups_claim,
            scope_names=auth.scopes,
        )
        readers.append(JwtReader(jwt, http))
    return readers


def protected_resource(auth: AuthTable) -> ProtectedResource | None:
    """The OAuth protected-resource metadata; None if no authorization server is configured."""
    servers = auth.authorization_servers
    if not servers and auth.issuer is not None and (auth.jwks_url or auth.jwks_file):
        servers = (auth.issuer,)
    if not servers:
        return None
    theirs: dict[str, str] = {ours: name for name, ours in auth.scopes.items()}
    return ProtectedResource(servers, [theirs.get(scope, scope) for scope in SCOPES], auth.resource)


def hub_access(settings: Settings) -> Access:
    """The configured access lists of all agents, which the hub checks before it forwards a call."""
    return Access({agent: _rule_of(table) for agent, table in settings.access.items()})


def agent_rule(settings: Settings, agent: str, own: AccessRule) -> AccessRule:
    """The access lists of one agent: the settings, with its ``agent.json`` as the default.

    Raises InvalidSettingError for a ``send`` entry without an agent.
    """
    table = settings.access.get(agent, AccessTable())
    rule = AccessRule(
        receive=own.receive if table.receive is None else table.receive,
        send=own.send if table.send is None else table.send,
    )
    for entry in rule.send or ():
        if not entry.partition("/")[0]:
            raise InvalidSettingError(
                f"access.{agent}.send", f"{entry[:80]!r} names no agent", remedy="write AGENT or AGENT/SKILL"
            )
    return rule


def _rule_of(table: AccessTable) -> AccessRule:
    return AccessRule(table.receive, table.send)
