"""Access tokens of a state folder: commands issue, list and revoke them, every running process checks them.

``keys/tokens.json`` holds the SHA-256 of each token, so reading the file grants no access. A process checks
whether the file changed at most twice a second, and immediately for an unknown token: a new token works at
once, a revoked one stops working within a second, without a restart. While the file cannot be read, no token
is accepted.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import orjson
import structlog

from retinue.core.call import Principal
from retinue.core.errors import NotAuthenticatedError, StateDamagedError, StateError, UnknownTokenError
from retinue.core.text import suggest
from retinue.storage.files import LOCK_WITHIN_S, hold_lock, replace_file, storage_errors

SCOPES = ("exposed", "mesh", "runs_code", "approves")
JOIN_SCOPES = SCOPES[:3]
"""The scopes of another machine of the mesh, which answers no approvals."""

PREFIX = "rtn_"
JOIN_CALLER = "join:"
"""Beginning of the id of a caller that has joined with a token of kind "join"."""

CHECK_EVERY_S = 0.5
RECORD_USE_EVERY_S = 60.0

_FILE = "tokens.json"
_USES = "used"
_DIGEST_LENGTH = 64
_log = structlog.get_logger("retinue.tokens")


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """The record of one token. Times are seconds since 1970; ``digest`` is the SHA-256 of the whole token.

    ``kind`` "join" marks a token for another machine of this mesh. Tokens with the same name identify the
    same caller, so that one can replace another. ``groups`` are names in policies.
    """

    id: str
    digest: str
    name: str | None
    kind: Literal["token", "join"]
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    created_at: float
    expires_at: float | None = None
    groups: tuple[str, ...] = ()

    @property
    def principal(self) -> Principal:
        """The principal that this token identifies."""
        scopes = frozenset(self.scopes)
        if self.kind == "join":
            return Principal(f"{JOIN_CALLER}{self.name or self.id}", "mesh", scopes, self.agents)
        return Principal(f"token:{self.name or self.id}", "token", scopes, self.agents)

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


_NO_TOKEN = IssuedToken("", "0" * _DIGEST_LENGTH, None, "token", (), (), 0.0)
_UNKNOWN = (_NO_TOKEN, _NO_TOKEN.principal)
"""Compared with unknown tokens, so that checking them takes as long as checking known ones."""


class TokenFile:
    """The token file in the folder ``keys``, for commands; a file lock serialises changes."""

    def __init__(self, keys: Path) -> None:
        self._keys = keys
        self._path = keys / _FILE

    def issue(
        self,
        scopes: Iterable[str],
        *,
        name: str | None = None,
        agents: Iterable[str] = (),
        lifetime_s: float | None = None,
        kind: Literal["token", "join"] = "token",
        groups: Iterable[str] = (),
    ) -> tuple[IssuedToken, str]:
        """Issue a token. Returns its record and its text, which is not stored and cannot be shown again."""
        now = time.time()
        with self._editing() as held:
            ids = {token.id for token in held}
            token_id = next(i for i in iter(lambda: secrets.token_hex(4), None) if i not in ids)
            text = f"{PREFIX}{token_id}_{secrets.token_urlsafe(32)}"
            issued = IssuedToken(
                id=token_id,
                digest=sha256(text.encode()).hexdigest(),
                name=name,
                kind=kind,
                scopes=tuple(scope for scope in SCOPES if scope in set(scopes)),
                agents=tuple(agents),
                created_at=now,
                expires_at=None if lifetime_s is None else now + lifetime_s,
                groups=tuple(groups),
            )
            held.append(issued)
        return issued, text

    def list_all(self) -> tuple[IssuedToken, ...]:
        """List all tokens that are not revoked, oldest first. Raises StateDamagedError."""
        return read_tokens(self._path)

    def last_used(self, token_id: str) -> float | None:
        """Time of last use in seconds since 1970, to the minute; None when never used."""
        try:
            return (self._keys / _USES / token_id).stat().st_mtime
        except OSError:
            return None

    def identifies(self, caller: str) -> bool:
        """Whether a token that is neither revoked nor expired identifies this caller.

        Raises StateDamagedError.
        """
        now = time.time()
        return any(token.principal.id == caller and not token.is_expired(now) for token in self.list_all())

    def find_scopes(self, caller: str) -> frozenset[str] | None:
        """The scopes of the newest valid token of a caller; None without one. Raises StateDamagedError."""
        now = time.time()
        valid = [
            token for token in self.list_all() if token.principal.id == caller and not token.is_expired(now)
        ]
        return frozenset(valid[-1].scopes) if valid else None

    def revoke(self, token_id: str) -> IssuedToken:
        """Revoke a token. Raises UnknownTokenError with similar ids."""
        with self._editing() as held:
            token = next((known for known in held if known.id == token_id), None)
            if token is None:
                raise UnknownTokenError(token_id, near=suggest(token_id, [known.id for known in held]))
            held.remove(token)
        (self._keys / _USES / token_id).unlink(missing_ok=True)
        return token

    def merge(
        self, added: Iterable[IssuedToken], revoked: Collection[str], *, within_s: float = LOCK_WITHIN_S
    ) -> None:
        """Add tokens that another hub has issued, and drop those that were revoked there, by their ids.

        Raises StateError if another process holds the lock for longer than ``within_s``.
        """
        with self._editing(within_s) as held:
            known = {token.id for token in held}
            held[:] = [token for token in held if token.id not in revoked]
            held += [token for token in added if token.id not in known]

    @contextmanager
    def _editing(self, within_s: float = LOCK_WITHIN_S) -> Iterator[list[IssuedToken]]:
        """The tokens under the file lock, written back at the end of the block unless it raised."""
        with storage_errors(self._keys):
            self._keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(self._keys / ".lock", mode=0o600, within_s=within_s):
            held = list(read_tokens(self._path))
            yield held
            with storage_errors(self._path):
                replace_file(self._path, _render(held), mode=0o600)


class KnownTokens:
    """The tokens as a running process knows them; consulted for each request that carries one."""

    def __init__(
        self,
        keys: Path,
        *,
        clock: Callable[[], float] = time.time,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        self._path = keys / _FILE
        self._uses = keys / _USES
        self._clock = clock
        self._check_every_s = check_every_s
        self._checked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._tokens: Mapping[str, tuple[IssuedToken, Principal]] = {}
        self._recorded: dict[str, float] = {}

    async def read(self, token: bytes, place: str) -> Principal | None:
        """The principal of a token; None when it is not an issued token.

        The id in the token selects the record; hashes are compared in constant time.
        Raises NotAuthenticatedError when the token has expired.
        """
        if not token.startswith(PREFIX.encode()):
            return None
        token_id = token[len(PREFIX) :].partition(b"_")[0].decode("latin-1")
        ticks = time.monotonic()
        if token_id not in self._tokens or ticks - self._checked_at >= self._check_every_s:
            self._checked_at = ticks
            self._reload_if_changed()
        issued, principal = self._tokens.get(token_id, _UNKNOWN)
        if not hmac.compare_digest(sha256(token).hexdigest(), issued.digest):
            return None
        now = self._clock()
        if issued.is_expired(now):
            raise NotAuthenticatedError(
                "this token has expired", remedy="create a new one: retinue token new"
            )
        # also after the clock was set back
        if abs(now - self._recorded.get(token_id, 0.0)) >= RECORD_USE_EVERY_S:
            self._record_use(token_id, now)
        return principal

    def _reload_if_changed(self) -> None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        except FileNotFoundError:
            self._seen, self._tokens = None, {}
            return
        except OSError as error:
            self._reject_all(str(error))
            return
        if seen == self._seen:
            return
        try:
            self._tokens = {token.id: (token, token.principal) for token in read_tokens(self._path)}
            self._seen = seen
        except StateError as error:
            self._reject_all(error.message)

    def _reject_all(self, problem: str) -> None:
        _log.warning("tokens cannot be read: none is accepted", problem=problem)
        self._seen, self._tokens = None, {}

    def _record_use(self, token_id: str, now: float) -> None:
        """Record the time of use as the modification time of an empty file, which needs no lock.

        Errors are logged.
        """
        self._recorded[token_id] = now
        try:
            self._uses.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._uses / token_id, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.utime(descriptor, (now, now))
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.debug("use of a token not noted", token=token_id, problem=error.strerror)


class TokenGroups:
    """The groups that the tokens of a state folder name for their callers; changes count within a second."""

    def __init__(
        self,
        keys: Path,
        *,
        clock: Callable[[], float] = time.time,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        self._path = keys / _FILE
        self._clock = clock
        self._check_every_s = check_every_s
        self._checked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._tokens: Mapping[str, Sequence[IssuedToken]] | None = {}

    def find(self, caller: str) -> tuple[str, ...] | None:
        """The groups of a caller, of all its tokens that have not expired; None for an unreadable file."""
        ticks = time.monotonic()
        if ticks - self._checked_at >= self._check_every_s:
            self._checked_at = ticks
            self._reload_if_changed()
        if self._tokens is None:
            return None
        now = self._clock()
        tokens = [token for token in self._tokens.get(caller, ()) if not token.is_expired(now)]
        return tuple({group: None for token in tokens for group in token.groups})

    def _reload_if_changed(self) -> None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen == self._seen:
                return
            tokens: dict[str, list[IssuedToken]] = {}
            for token in read_tokens(self._path):
                if token.groups:
                    tokens.setdefault(token.principal.id, []).append(token)
            self._tokens, self._seen = tokens, seen
        except FileNotFoundError:
            self._tokens, self._seen = {}, None
        except (OSError, StateError) as error:
            _log.warning("groups of tokens cannot be read", problem=str(error))
            self._tokens, self._seen = None, None


def read_tokens(path: Path) -> tuple[IssuedToken, ...]:
    """Read the tokens in the file; empty when it does not exist. Raises StateDamagedError."""
    try:
        rows = orjson.loads(path.read_bytes())
        return tuple(parse_token(row) for row in rows["tokens"])
    except FileNotFoundError:
        return ()
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise StateDamagedError(
            str(path),
            f"it contains no list of tokens ({type(error).__name__})",
            remedy="remove the file; all issued tokens stop working",
        ) from error


def parse_token(row: Mapping[str, Any]) -> IssuedToken:
    """The token of a row of the file. Raises KeyError, TypeError and ValueError for another form."""
    expires, name = row["expires"], row["name"]
    digest, kind = str(row["sha256"]), row["kind"]
    if len(digest) != _DIGEST_LENGTH or kind not in ("token", "join"):
        raise ValueError("not a token")
    return IssuedToken(
        id=str(row["id"]),
        digest=digest,
        name=None if name is None else str(name),
        kind=kind,
        scopes=_texts(row["scopes"]),
        agents=_texts(row["agents"]),
        created_at=float(row["created"]),
        expires_at=None if expires is None else float(expires),
        groups=_texts(row.get("groups", [])),
    )


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return tuple(map(str, value))


def render_token(token: IssuedToken) -> dict[str, Any]:
    """The row of a token in the file."""
    return {
        "id": token.id,
        "sha256": token.digest,
        "name": token.name,
        "kind": token.kind,
        "scopes": token.scopes,
        "agents": token.agents,
        "created": token.created_at,
        "expires": token.expires_at,
        "groups": token.groups,
    }


def _render(tokens: Sequence[IssuedToken]) -> bytes:
    rows = [render_token(token) for token in tokens]
    return orjson.dumps({"v": 1, "tokens": rows}, option=orjson.OPT_INDENT_2)
