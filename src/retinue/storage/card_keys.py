"""The keys of a state folder for signed cards: its own key, and trusted keys.

``keys/card-signing.json`` (mode 0600) holds the private key of this state as JWK, created at the first use.
``keys/trusted-cards.json`` holds the trusted JWK sets by the name that a person gave them. Files of further
sets can be named in the settings. The state's own key is always trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from retinue.cards.signatures import SigningKey, TrustedKeys, read_keys
from retinue.core.errors import InvalidSettingError, StateDamagedError
from retinue.storage.files import hold_lock, replace_file, storage_errors

OWN = "this state"
"""The owner of the state's own key."""

_SIGNING = "card-signing.json"
_TRUSTED = "trusted-cards.json"
_PRIVATE = 0o600


class CardKeys:
    """The keys in the folder ``keys`` of a state, and in ``files`` of JWK sets."""

    def __init__(self, keys: Path, files: Sequence[Path] = ()) -> None:
        self._keys = keys
        self._files = tuple(files)
        self._read: tuple[object, TrustedKeys] | None = None

    def signing_key(self) -> SigningKey:
        """The private key of this state, created at the first call. Raises StateError."""
        path = self._keys / _SIGNING
        if (own_key := self._find_own()) is not None:
            return own_key
        with storage_errors(path):
            self._keys.mkdir(mode=0o700, parents=True, exist_ok=True)
            with hold_lock(self._keys / ".lock", mode=_PRIVATE):
                if (own_key := self._find_own()) is not None:
                    return own_key
                made = SigningKey.create()
                replace_file(path, orjson.dumps(made.jwk), mode=_PRIVATE)
        return made

    def find_own_id(self) -> str | None:
        """The id of the private key of this state; None where it has none yet. Raises StateDamagedError."""
        own = self._find_own()
        return None if own is None else own.kid

    def trusted(self) -> TrustedKeys:
        """The keys that are trusted now. Raises StateDamagedError, InvalidSettingError."""
        revision = self.revision()
        if self._read is None or self._read[0] != revision:
            self._read = revision, TrustedKeys(self._read_sets())
        return self._read[1]

    def revision(self) -> object:
        """Changes whenever one of the files does."""
        return tuple(_stamp_of(path) for path in (self._keys / _SIGNING, self._keys / _TRUSTED, *self._files))

    def list_trusted(self) -> dict[str, Any]:
        """The JWK sets that a person has trusted by command, by name."""
        return dict(_read_object(self._keys / _TRUSTED))

    def trust(self, name: str, document: object) -> list[str]:
        """Trust the keys of a JWK set under a name, in place of former ones; returns their ids."""
        rows = read_keys(document, name)
        self._change(name, {"keys": rows})
        return [str(row["kid"]) for row in rows]

    def forget(self, name: str) -> bool:
        """Stop trusting the keys of this name; False where there are none."""
        if name not in self.list_trusted():
            return False
        self._change(name, None)
        return True

    def _change(self, name: str, document: Mapping[str, Any] | None) -> None:
        path = self._keys / _TRUSTED
        with storage_errors(path):
            self._keys.mkdir(mode=0o700, parents=True, exist_ok=True)
            with hold_lock(self._keys / ".lock", mode=_PRIVATE):
                kept = dict(_read_object(path))
                kept.pop(name, None)
                if document is not None:
                    kept[name] = document
                replace_file(path, orjson.dumps(kept, option=orjson.OPT_INDENT_2), mode=_PRIVATE)

    def _find_own(self) -> SigningKey | None:
        jwk = _read_object(self._keys / _SIGNING)
        if jwk and not {"kid", "d", "x", "y"} <= jwk.keys():
            remedy = "restore it, or delete it: a new key is made, which others have to trust anew"
            raise StateDamagedError(str(self._keys / _SIGNING), "it holds no key", remedy=remedy)
        return SigningKey(jwk) if jwk else None

    def _read_sets(self) -> dict[str, Any]:
        sets: dict[str, Any] = {}
        for path in self._files:
            try:
                sets[str(path)] = orjson.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                remedy = "name a file with a JWK set"
                raise InvalidSettingError("signatures.trusted", f"{path}: {error}", remedy=remedy) from error
        sets |= self.list_trusted()
        if (own := self._find_own()) is not None:
            sets[OWN] = own.public
        return sets


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StateDamagedError(str(path), "it is not JSON", remedy="restore it, or delete it") from error
    return value if isinstance(value, dict) else {}


def _stamp_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
