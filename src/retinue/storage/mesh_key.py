"""The mesh key, which all processes of one mesh share, and joining the mesh of another machine.

``keys/mesh.key`` (mode 0600) holds 32 random bytes in hex; the key is that text. Children find it through
their state folder.

To join a mesh, ``retinue token new --join`` prints one text on the hub's machine: a token for the hub and
the mesh key. ``RETINUE_JOIN`` passes it to the joining machine, which stores both in ``keys/``: the key as
its own, the token in ``joined.json`` (mode 0600) under the origin of the hub.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from retinue.core.errors import InvalidSettingError, StateDamagedError
from retinue.storage.files import hold_lock, replace_file, storage_errors

JOIN_VARIABLE = "RETINUE_JOIN"
JOIN_PREFIX = "rtnj_"
KEY_BYTES = 32
MIN_KEY_LENGTH = 32
"""In characters; a key need not be hex."""

_KEY_FILE = "mesh.key"
_JOIN_FILE = "joined.json"


@dataclass(frozen=True, slots=True)
class Join:
    """The credentials of a joining machine: a token for the hub and the mesh key."""

    token: str
    key: bytes

    def __repr__(self) -> str:
        return f"Join(key {key_id(self.key)})"


def mesh_key(keys: Path) -> bytes:
    """The key in the folder ``keys`` of a state, created at the first call.

    Raises StateDamagedError when the file holds no key, StateError when it cannot be written.
    """
    path = keys / _KEY_FILE
    if (key := _read_key(path)) is not None:
        return key
    with storage_errors(path):
        keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(keys / ".lock", mode=0o600):
            if (key := _read_key(path)) is not None:
                return key
            key = secrets.token_hex(KEY_BYTES).encode()
            replace_file(path, key, mode=0o600)
    return key


def adopt_mesh_key(keys: Path, key: bytes) -> bool:
    """Store ``key`` as the mesh key of this state; False when it already was.

    Raises InvalidSettingError when the state belongs to another mesh.
    """
    path = keys / _KEY_FILE
    with storage_errors(path):
        keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(keys / ".lock", mode=0o600):
            held = _read_key(path)
            if held == key:
                return False
            if held is not None:
                raise InvalidSettingError(
                    "RETINUE_JOIN",
                    "this state belongs to another mesh",
                    remedy=f"use a new state folder (RETINUE_HOME), or remove {path}",
                )
            replace_file(path, key, mode=0o600)
            return True


def key_id(key: bytes) -> str:
    """A public identifier of a key, which does not reveal the key."""
    return sha256(b"retinue mesh key\x00" + key).hexdigest()[:16]


def render_join(join: Join) -> str:
    """Render the text to pass to the joining machine. It is a secret: its holder is a member of the mesh."""
    facts = {"v": 1, "token": join.token, "kid": key_id(join.key), "key": join.key.decode()}
    return JOIN_PREFIX + base64.urlsafe_b64encode(orjson.dumps(facts)).decode().rstrip("=")


def parse_join(text: str) -> Join:
    """Parse the text of `render_join`. Raises InvalidSettingError, which never quotes the text."""
    packed = text.strip().removeprefix(JOIN_PREFIX)
    try:
        facts = orjson.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
        join = Join(str(facts["token"]), str(facts["key"]).encode("ascii"))
        if len(join.key) < MIN_KEY_LENGTH or key_id(join.key) != facts["kid"] or facts["v"] != 1:
            raise ValueError("incomplete")
    except (ValueError, KeyError, TypeError):
        raise InvalidSettingError(
            JOIN_VARIABLE,
            "it is not a complete join text",
            remedy="copy the whole line that this prints on the hub's machine: retinue token new --join",
        ) from None
    return join


def accept_join(keys: Path, hub_url: str, join: Join) -> None:
    """Join this state to a mesh: store its key, and the token for the hub at ``hub_url``.

    Raises InvalidSettingError when the state belongs to another mesh.
    """
    is_new = adopt_mesh_key(keys, join.key)
    path = keys / _JOIN_FILE
    with storage_errors(path), hold_lock(keys / ".lock", mode=0o600):
        # a new key means another mesh: tokens of its former hubs are useless
        joined = {**({} if is_new else _read_join(path)), _origin(hub_url): join.token}
        replace_file(path, orjson.dumps(joined), mode=0o600)


def joined_token(keys: Path, url: str) -> str | None:
    """The token for the hub at ``url``; None when this state has not joined it."""
    return _read_join(keys / _JOIN_FILE).get(_origin(url))


def check_joined(keys: Path, url: str) -> None:
    """Check that this state has joined the hub at ``url``. Raises InvalidSettingError."""
    if "://" not in url:
        raise InvalidSettingError("--join", f"{url!r} is not a url", remedy=f"write http://{url}")
    if joined_token(keys, url) is None:
        raise InvalidSettingError(
            "--join",
            "this state has not joined that hub",
            remedy=f"set {JOIN_VARIABLE} to the output of this command on the hub's machine: retinue token "
            "new --join",
        )


def _read_key(path: Path) -> bytes | None:
    try:
        key = path.read_text("ascii").strip().encode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StateDamagedError(
            str(path),
            f"it cannot be read as a key ({type(error).__name__})",
            remedy="remove the file; a new one is created",
        ) from error
    if len(key) < MIN_KEY_LENGTH:
        raise StateDamagedError(
            str(path), "it contains no key", remedy="remove the file; a new one is created"
        )
    return key


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()


def _read_join(path: Path) -> dict[str, str]:
    try:
        tokens = orjson.loads(path.read_bytes())
        return {str(origin): str(token) for origin, token in tokens.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise StateDamagedError(
            str(path),
            f"it contains no list of hubs ({type(error).__name__})",
            remedy="remove the file, then join again",
        ) from error
