"""A machine joins the mesh of another: one text carries the token for its hub and the key of the mesh.

``retinue token new --join`` prints it there, ``RETINUE_JOIN`` brings it here. What it held is kept in
``keys/`` (0600): the key as this state's own, the token in ``joined.json`` under the hub's origin.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import orjson
from filelock import FileLock

from retinue.core.errors import InvalidSettingError, StateDamagedError
from retinue.drivers.files import replace_file, storage_errors
from retinue.drivers.mesh_bearer import MIN_KEY_LENGTH, adopt_mesh_key, key_id

JOIN_VARIABLE = "RETINUE_JOIN"
JOIN_PREFIX = "rtnj_"

_FILE = "joined.json"


@dataclass(frozen=True, slots=True)
class Join:
    """What another machine needs: a token for the hub, and the mesh's key."""

    token: str
    key: bytes

    def __repr__(self) -> str:
        return f"Join(key {key_id(self.key)})"


def render_join(join: Join) -> str:
    """The text to carry over; whoever has it is of the mesh."""
    facts = {"v": 1, "token": join.token, "kid": key_id(join.key), "key": join.key.decode()}
    return JOIN_PREFIX + base64.urlsafe_b64encode(orjson.dumps(facts)).decode().rstrip("=")


def parse_join(text: str) -> Join:
    """Raises InvalidSettingError, without a word of the text."""
    packed = text.strip().removeprefix(JOIN_PREFIX)
    try:
        facts = orjson.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
        join = Join(str(facts["token"]), str(facts["key"]).encode("ascii"))
        if len(join.key) < MIN_KEY_LENGTH or key_id(join.key) != facts["kid"] or facts["v"] != 1:
            raise ValueError("cut off")
    except (ValueError, KeyError, TypeError):
        raise InvalidSettingError(
            JOIN_VARIABLE,
            "this is not what was printed, or not all of it",
            remedy="on the hub's machine: retinue token new --join",
        ) from None
    return join


def accept_join(keys: Path, hub_url: str, join: Join) -> None:
    """Make this state one of that mesh, known to the hub at ``hub_url``.

    Raises InvalidSettingError when the state is of another mesh already.
    """
    is_new = adopt_mesh_key(keys, join.key)
    path = keys / _FILE
    with storage_errors(path), FileLock(keys / ".lock"):
        # hubs that were joined with another key are of another mesh
        joined = {**({} if is_new else _read(path)), _origin(hub_url): join.token}
        replace_file(path, orjson.dumps(joined), mode=0o600)


def joined_token(keys: Path, url: str) -> str | None:
    """The token for the hub at ``url``, None where this state has not joined it."""
    return _read(keys / _FILE).get(_origin(url))


def check_joined(keys: Path, url: str) -> None:
    """Raises InvalidSettingError where this state has not joined the hub at ``url``."""
    if "://" not in url:
        raise InvalidSettingError("--join", f"{url!r} is no url", remedy=f"write http://{url}")
    if joined_token(keys, url) is None:
        raise InvalidSettingError(
            "--join",
            "this state has not joined that hub",
            remedy=f"set {JOIN_VARIABLE} to what this prints on the hub's machine: retinue token new --join",
        )


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()


def _read(path: Path) -> dict[str, str]:
    try:
        found = orjson.loads(path.read_bytes())
        return {str(origin): str(token) for origin, token in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise StateDamagedError(
            str(path), f"no list of hubs in it ({type(error).__name__})", remedy="remove it, and join again"
        ) from error
