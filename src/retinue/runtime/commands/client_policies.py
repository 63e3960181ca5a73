"""The token of its own that an MCP client with policies has, and the profiles that are stored for it."""

from __future__ import annotations

import re
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from retinue.mcp.client_configs.clients import Client
from retinue.mcp.client_configs.config_files import read_text
from retinue.runtime.loading.policy_files import FOLDER, remove_policies
from retinue.storage.state import State
from retinue.web.issued_tokens import IssuedToken, TokenFile

SCOPES = ("exposed", "mesh", "runs_code")
"""The scopes of a client's own token: those of the token of the state, so that only its policies differ."""

_TOKEN = re.compile(r"rtn_[0-9a-f]{8}_[\w-]{43}")


def list_client_profiles(state: State, client: Client) -> list[str]:
    """The names of the profiles that are stored for a client."""
    files = (state.root / FOLDER).glob(f"*{_end_of(client)}.cedar")
    names = sorted(file.stem.removesuffix(_end_of(client)) for file in files)
    if not names:
        return []
    from retinue.policies.profiles import list_profiles  # most clients have none

    return [name for name in names if name in list_profiles()]


def find_client_token(client: Client, file: Path, name: str, state: State) -> str | None:
    """The token in the client's entry that was issued to this client and is valid; None without one."""
    issued, text = _find_issued(client, file, name, state)
    return None if issued is None or issued.is_expired(time.time()) else text


def take_client_token(client: Client, file: Path, name: str, state: State) -> tuple[str, IssuedToken | None]:
    """The client's own token, and its record if it is new."""
    token = find_client_token(client, file, name, state)
    if token is not None:
        return token, None
    issued, token = TokenFile(state.keys).issue(SCOPES, name=client.name)
    return token, issued


def drop_client_policies(client: Client, file: Path, name: str, state: State) -> list[str]:
    """Remove the profiles of a client and revoke its own token; returns the names of the profiles."""
    profiles = list_client_profiles(state, client)
    # before its policies, so that it never acts without them
    revoke_client_token(client, file, name, state)
    for profile in profiles:
        remove_policies(state.root, f"{profile}{_end_of(client)}")
    return profiles


def revoke_client_token(client: Client, file: Path, name: str, state: State) -> IssuedToken | None:
    """Revoke the client's own token, which its entry has; returns its record, None where it has none."""
    issued, _ = _find_issued(client, file, name, state)
    if issued is not None:
        TokenFile(state.keys).revoke(issued.id)
    return issued


def _find_issued(client: Client, file: Path, name: str, state: State) -> tuple[IssuedToken | None, str]:
    text = read_text(file)
    entry: Any = None if text is None else client.read_entry(text, name, str(file))
    match = _TOKEN.search(str(entry)) if isinstance(entry, dict) else None
    if match is None:
        return None, ""
    digest = sha256(match[0].encode()).hexdigest()
    tokens = TokenFile(state.keys).list_all()
    return next(
        (token for token in tokens if (token.digest, token.name) == (digest, client.name)), None
    ), match[0]


def _end_of(client: Client) -> str:
    """The end of the names of its files, as `make_profile` makes them."""
    return f"-token-{client.name}"
