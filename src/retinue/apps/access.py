"""From settings to who is let in: the doors' checks, readers of tokens, lists of agents."""

from __future__ import annotations

from retinue.core.errors import InvalidSettingError
from retinue.drivers.http import HttpClient
from retinue.drivers.jwt_tokens import JwtReader, JwtSettings
from retinue.drivers.mesh_bearer import MeshBearer
from retinue.drivers.state import State
from retinue.drivers.tokens import SCOPES, KnownTokens
from retinue.mesh.access import Access, AccessRule
from retinue.settings import AccessTable, Settings
from retinue.surfaces.challenges import ProtectedResource
from retinue.surfaces.security import DoorSettings, TokenReader, check_bind


def check_address(host: str, settings: Settings, *, insecure_ok: bool) -> None:
    """Refuse an address of the network where nobody is asked for a token (InvalidSettingError)."""
    check_bind(host, has_auth=not settings.auth.anonymous, insecure_ok=insecure_ok)


def door_settings(settings: Settings, host: str) -> DoorSettings:
    """What the doorkeeper at ``host`` checks."""
    return DoorSettings(
        host=host,
        hosts=settings.doors.hosts,
        origins=settings.doors.origins,
        max_body_bytes=settings.limits.body_bytes,
        anonymous=settings.auth.anonymous,
        resource=protected_resource(settings),
    )


def token_readers(settings: Settings, state: State, http: HttpClient) -> list[TokenReader]:
    """Whose tokens are taken beside the state's own: those given out, the mesh's, those of an issuer."""
    readers: list[TokenReader] = [KnownTokens(state.keys), MeshBearer(state.mesh_key())]
    auth = settings.auth
    if auth.issuer is not None and (auth.jwks_url or auth.jwks_file):
        wanted = JwtSettings(
            issuer=auth.issuer,
            audiences=auth.audience,
            jwks_url=auth.jwks_url,
            jwks_file=auth.jwks_file,
            scopes_claim=auth.scopes_claim,
            scope_names=auth.scopes,
        )
        readers.append(JwtReader(wanted, http))
    return readers


def protected_resource(settings: Settings) -> ProtectedResource | None:
    """What OAuth clients are told; None where no authorization server is named."""
    auth = settings.auth
    servers = auth.authorization_servers
    if not servers and auth.issuer is not None and (auth.jwks_url or auth.jwks_file):
        servers = (auth.issuer,)
    if not servers:
        return None
    theirs: dict[str, str] = {ours: name for name, ours in auth.scopes.items()}
    return ProtectedResource(servers, [theirs.get(scope, scope) for scope in SCOPES], auth.resource)


def hub_access(settings: Settings) -> Access:
    """The lists of all agents, as the hub holds them before it forwards a call."""
    return Access({agent: _rule_of(table) for agent, table in settings.access.items()})


def agent_rule(settings: Settings, agent: str, own: AccessRule) -> AccessRule:
    """The lists of one agent: those of its ``agent.json``, where the settings say nothing else."""
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
