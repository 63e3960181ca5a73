"""Makes and checks the tokens and trace signatures of one mesh with the mesh key.

A token is ``rtnm_`` and a JWT (HS256), valid for one minute and for one host and port: a recipient that
leaks it, or a card that names a foreign address, gains access to nothing else.

`MeshSigner` signs outgoing traces and verifies incoming ones; a trace signed with another key counts as
unverified claims. `ReplayWindow` rejects repeated messages. It stores signatures only for a short window;
when it is full, it raises the age limit for all messages, so that a forgotten signature is never accepted
again (specification 9.2).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from retinue.core.call import Principal, TraceContext
from retinue.core.durations import render_duration
from retinue.core.errors import ClocksDifferError, NotAuthenticatedError, OtherMeshError, StateError
from retinue.storage.mesh_key import joined_token, key_id
from retinue.storage.state import State
from retinue.web.addresses import is_loopback_url
from retinue.web.codec.trace_signature import is_signed, render_key_id, sign_trace, sign_usage

BEARER_PREFIX = "rtnm_"
BEARER_LIFETIME_S = 60
CLOCK_SKEW_S = 30
STEP_S = 1.0
"""The clock of this machine was set if it moved by this much more or less than the monotonic clock."""

WINDOW_S = 60.0
"""Accepted age of a signed message: clock difference of two machines plus time in transit."""

_FORGETS_FROM = 1_000
"""The number of signatures that are remembered before any is dropped."""

MESH_MEMBER = Principal("mesh", "mesh", frozenset({"exposed", "mesh", "runs_code"}))
"""The sender of a valid token of the mesh."""

_ALGORITHM = "HS256"
_LATEST_S = BEARER_LIFETIME_S + CLOCK_SKEW_S
_MAX_PLACES = 1000


def find_hub_token(state: State, url: str) -> str | None:
    """The token that a process of this state sends to the hub at ``url``; None if it has none for it.

    That of joining this very hub, or the state's own for the hub of the state: it is secret elsewhere, also
    at another hub of this machine.
    """
    return joined_token(state.keys, url) or (state.local_token() if is_hub_of(state, url) else None)


def is_hub_of(state: State, url: str) -> bool:
    """Whether ``url`` leads to the running hub of ``state`` on a loopback address of this machine."""
    if not is_loopback_url(url):
        return False
    try:
        hub = state.read_hub()
    except StateError:
        return False
    return (
        hub is not None
        and urlsplit(hub.url).netloc.rpartition(":")[2] == urlsplit(url).netloc.rpartition(":")[2]
    )


class ReplayWindow:
    """Stores the signatures of the last and next ``window_s`` seconds, at most ``keep`` of them.

    Expired ones are dropped each time that their number has doubled. When the clock was set back, the raised
    age limit is set back as well: otherwise it would reject all messages until the old time is reached again.
    """

    def __init__(
        self,
        *,
        window_s: float = WINDOW_S,
        keep: int = 200_000,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_ms = window_s * 1000
        self._keep = keep
        self._clock = clock
        self._monotonic = monotonic
        self._seen: dict[str, int] = {}
        self._forgets_at = min(keep, _FORGETS_FROM)
        self._forgotten_ms = 0.0
        self._offset_s = clock() - monotonic()

    @property
    def remembered_signatures(self) -> int:
        return len(self._seen)

    def verify(self, mac: str, sent_at_ms: int) -> str | None:
        """Why a message is rejected, None when it is accepted.

        A second call for the same message rejects it.
        """
        now_s = self._clock()
        offset_s = now_s - self._monotonic()
        if (step_s := offset_s - self._offset_s) < -STEP_S:
            self._forgotten_ms += step_s * 1000
        if abs(step_s) > STEP_S:
            self._offset_s = offset_s
        now_ms = now_s * 1000
        if sent_at_ms <= max(now_ms - self._window_ms, self._forgotten_ms):
            return "it is too old"
        if sent_at_ms > now_ms + self._window_ms:
            return "it was sent in the future: do the clocks differ?"
        if mac in self._seen:
            return "it was sent before"
        if len(self._seen) >= self._forgets_at:
            self._forget(now_ms - self._window_ms)
        self._seen[mac] = sent_at_ms
        return None

    def _forget(self, too_old_ms: float) -> None:
        """Drop signatures that are too old; near the limit also the older half of the others."""
        kept = {mac: at for mac, at in self._seen.items() if at > too_old_ms}
        if len(self._seen) >= self._keep and len(kept) > self._keep // 2:
            self._forgotten_ms = sorted(kept.values())[len(kept) // 2]
            kept = {mac: at for mac, at in kept.items() if at > self._forgotten_ms}
        self._seen = kept
        self._forgets_at = min(self._keep, max(2 * len(kept), _FORGETS_FROM))


_AHEAD_MS = 10_000
"""At most so far ahead of the clock are the times of signatures, where very many are made at once."""


class MeshSigner:
    """Signs outgoing traces and verifies incoming ones.

    ``clock`` gives seconds since 1970.
    """

    def __init__(self, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._kid = render_key_id(key)
        self._clock = clock
        self._replays = ReplayWindow(clock=clock)
        self._last_at_ms = 0

    @classmethod
    def of(cls, state: State) -> MeshSigner:
        """Create a signer with the key of ``state``.

        Raises StateError when the key cannot be read or created.
        """
        return cls(state.mesh_key())

    def sign(self, trace: TraceContext, agent: str, skill: str) -> TraceContext:
        """Sign a trace for ``agent`` ("" = any) and ``skill``; an untrusted trace is returned unsigned."""
        if not trace.trusted or not trace.depth_given:
            return trace
        sent_at_ms = int(self._clock() * 1000)
        if trace.extension is not None:
            # two messages of one millisecond must not look like one that is sent twice
            if 0 <= self._last_at_ms - sent_at_ms < _AHEAD_MS:
                sent_at_ms = self._last_at_ms + 1
            self._last_at_ms = sent_at_ms
        return sign_trace(trace, agent, skill, key=self._key, kid=self._kid, sent_at_ms=sent_at_ms)

    def verify(self, trace: TraceContext, agent: str, skill: str) -> str | None:
        """Why the signature is rejected, None when it is valid. Call once per message."""
        if trace.mac is None or trace.sent_at_ms is None:
            return "it is not signed"
        if trace.kid != self._kid:
            return "it comes from another mesh"
        if not is_signed(trace, agent, skill, key=self._key):
            return "it does not match the call"
        return self._replays.verify(trace.mac, trace.sent_at_ms)

    def sign_usage(self, usage: Mapping[str, Any], request_mac: str) -> str:
        """The signature of the usage in the reply to a signed request."""
        return sign_usage(usage, request_mac, self._key)


@dataclass(frozen=True, slots=True)
class _Made:
    """A token with the time at which it was made, by the clock and by the monotonic clock."""

    at: float
    ticks: float
    token: str


class MeshBearer:
    """Makes and verifies the tokens of one mesh.

    ``sources`` are the registries that only this mesh publishes to: a card of another may name any URL.
    ``own_place`` is the host and port that this process advertises: a token for it is good although a proxy
    has replaced the Host header. ``clock`` gives seconds since 1970; ``monotonic`` is never set.
    """

    def __init__(
        self,
        key: bytes,
        sources: Collection[str] = (),
        *,
        own_place: str = "",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = frozenset(sources)
        self._own_place = own_place.lower()
        self._key = key
        self._kid = key_id(key)
        self._clock = clock
        self._monotonic = monotonic
        self._made: dict[str, _Made] = {}
        self._known: dict[bytes, tuple[float, str]] = {}

    def token_for(self, source: str, url: str) -> str | None:
        """The token for an agent of ``source`` at ``url``, on any machine; None for other sources."""
        return self.make(url) if source in self._sources else None

    def make(self, url: str) -> str:
        """The token for the host and port of ``url``.

        One token is reused for half of its lifetime, unless the clock was set since: recipients on this
        machine compare its times with the new time.
        """
        host = urlsplit(url).netloc.rpartition("@")[2].lower()
        now, ticks = self._clock(), self._monotonic()
        made = self._made.get(host)
        if made is not None:
            age_s = ticks - made.ticks
            if age_s < BEARER_LIFETIME_S / 2 and abs(now - made.at - age_s) < STEP_S:
                return made.token
        claims = {"aud": host, "iat": int(now), "exp": int(now) + BEARER_LIFETIME_S}
        header = {"alg": _ALGORITHM, "kid": self._kid}
        # joserfc and cryptography take 13 MB: they are loaded with the first token
        from joserfc import jwt
        from joserfc.jwk import OctKey

        key = OctKey.import_key(self._key)
        token = BEARER_PREFIX + jwt.encode(header, claims, key, algorithms=[_ALGORITHM])
        if len(self._made) >= _MAX_PLACES:
            self._made.clear()
        self._made[host] = _Made(now, ticks, token)
        return token

    async def read(self, token: bytes, place: str) -> Principal | None:
        """The principal of a token sent to ``place`` (host and port); None for a token of another kind.

        Raises OtherMeshError, NotAuthenticatedError for a token for another place, ClocksDifferError for one
        whose minute is over or has not come.
        """
        if not token.startswith(BEARER_PREFIX.encode()):
            return None
        expires, audience = self._known.get(token) or self._verify(token)
        if expires + CLOCK_SKEW_S <= self._clock() or expires > self._clock() + _LATEST_S:
            raise _refuse_time(expires, self._clock())
        if audience != place and (audience != self._own_place or not audience):
            raise NotAuthenticatedError(
                "this mesh token is for another host or port",
                remedy="if clients reach this server through a proxy or another address, add that to "
                "doors.hosts",
            )
        return MESH_MEMBER

    def _verify(self, token: bytes) -> tuple[float, str]:
        """Expiry and audience of a token, cached because many calls carry the same token."""
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import OctKey

        try:
            key = OctKey.import_key(self._key)
            claims = jwt.decode(token[len(BEARER_PREFIX) :], key, algorithms=[_ALGORITHM]).claims
            facts = float(claims["exp"]), str(claims["aud"])
        except (JoseError, ValueError, KeyError, TypeError):
            raise OtherMeshError(
                "this token belongs to another mesh",
                remedy="join this mesh; the hub's machine prints how: retinue token new --join",
            ) from None
        if len(self._known) >= _MAX_PLACES:
            self._known.clear()
        self._known[token] = facts
        return facts


def _refuse_time(expires: float, now: float) -> ClocksDifferError:
    """The error of a token that is not valid now; it names the age of the token by both clocks together."""
    age_s = now - (expires - BEARER_LIFETIME_S)
    age = render_duration(abs(age_s))
    if age_s > 0:
        return ClocksDifferError(f"this mesh token has expired: it was made {age} ago", now)
    return ClocksDifferError(f"this mesh token is of the future: it is made in {age}", now)
