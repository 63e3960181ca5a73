"""The identity of a node, with its key and its RID, kept below ``.koi/{name}/`` (K-07)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from retinue.core.errors import InvalidSettingError
from retinue.storage.files import make_folder, replace_file, storage_errors
from retinue_koi.codec.bundles import WireError
from retinue_koi.codec.envelopes import NodeKey
from retinue_koi.codec.profiles import NodeProfile
from retinue_koi.codec.rids import check_rid, node_rid

_PRIVATE = 0o600


@dataclass(frozen=True)
class Identity:
    """Who a node is. The RID is made of the key, so that it is valid on both dialects."""

    rid: str
    key: NodeKey
    profile: NodeProfile


def check_name(name: str) -> None:
    """Raise InvalidSettingError for a name of a node that no RID can hold, or that is no name of a folder."""
    if name and name not in (".", "..") and name.isprintable() and not set(name) & set("+:/\\"):
        return
    raise InvalidSettingError(
        "name",
        f"{name[:80]!r} is no name of a node",
        remedy="choose one without + : / \\ and control characters",
    )


def load_key(folder: Path) -> NodeKey:
    """The key in ``folder/priv_key.pem``, which only its owner may read; a new one if there is none.

    Raises InvalidSettingError for a file that holds no key, StateError for a folder that cannot be used.
    """
    path = folder / "priv_key.pem"
    with storage_errors(path):
        make_folder(folder)
        try:
            pem = path.read_bytes()
        except FileNotFoundError:
            key = NodeKey.generate()
            replace_file(path, key.to_pem(), mode=_PRIVATE)
            return key
        if path.stat().st_mode & 0o077:
            path.chmod(_PRIVATE)
    try:
        return NodeKey.from_pem(pem)
    except WireError as error:
        raise InvalidSettingError(
            "key", f"{path}: {error}", remedy="restore the file; without it the node gets another RID"
        ) from error


def load_identity(folder: Path, name: str, key: NodeKey, profile: NodeProfile) -> Identity:
    """The identity of a node, written to ``folder/identity.json`` for people and other tools.

    Raises InvalidSettingError for a name that cannot be part of a RID.
    """
    rid = node_rid(name, key.public_key)
    try:
        check_rid(rid)
    except ValueError as error:
        raise InvalidSettingError(
            "name", f"{name[:80]!r}: {error}", remedy="choose a shorter name"
        ) from error
    text = orjson.dumps({"rid": rid, "profile": profile.render()}, option=orjson.OPT_INDENT_2)
    path = folder / "identity.json"
    with storage_errors(path):
        replace_file(path, text, mode=_PRIVATE)
    return Identity(rid, key, profile)
