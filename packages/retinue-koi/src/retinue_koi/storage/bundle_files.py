"""The files of a cache: one for each bundle, one for notes, each replaced atomically."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from retinue.storage.files import write_all
from retinue_koi.codec.bundles import Bundle, WireError, has_hash, parse_bundle
from retinue_koi.codec.envelopes import decode_json
from retinue_koi.codec.rids import check_rid

_SUFFIX: Final = ".json"
_ASIDE: Final = ".damaged"
_TEMPORARY: Final = ".writing.tmp"

log = structlog.get_logger("retinue.koi")


class BundleFiles:
    """The files in ``folder``. Damaged ones are set aside with a log line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes_path = folder / "notes"

    def read_all(self) -> Iterator[Bundle]:
        """Every bundle that is what its file's name and its manifest say."""
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                rid = _rid_of(path.name)
                bundle = decode_bundle(path.read_bytes())
                if bundle.rid != rid:
                    raise WireError("manifest.rid is not that of the file's name")
                if not has_hash(bundle.contents, bundle.manifest.sha256_hash):
                    raise WireError("the contents do not have the hash of the manifest")
            except (OSError, WireError, ValueError) as error:
                _set_aside(path, error)
            else:
                yield bundle

    def read(self, rid: str) -> Bundle | None:
        """The bundle of a RID; None where its file was damaged."""
        path = self._path_of(rid)
        try:
            return decode_bundle(path.read_bytes())
        except (OSError, WireError) as error:
            _set_aside(path, error)
            return None

    def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Write bundles by RID; None deletes one. Raises OSError."""
        for rid, data in list(changes.items()):
            if data is None:
                self._path_of(rid).unlink(missing_ok=True)
            else:
                _replace(str(self._folder), _file_name(rid), data)

    def read_notes(self) -> dict[str, Any]:
        """The notes of `write_notes`, as JSON; {} without it."""
        try:
            notes = orjson.loads(self._notes_path.read_bytes())
        except FileNotFoundError:
            return {}
        except orjson.JSONDecodeError as error:
            _set_aside(self._notes_path, error)
            return {}
        return notes if isinstance(notes, dict) else {}

    def write_notes(self, data: bytes) -> None:
        """Replace the notes. Raises OSError."""
        _replace(str(self._folder), self._notes_path.name, data)

    def _path_of(self, rid: str) -> Path:
        return self._folder / _file_name(rid)


def decode_bundle(data: bytes) -> Bundle:
    """Parse the contents of a file. Raises WireError."""
    return parse_bundle(decode_json(data))


def _file_name(rid: str) -> str:
    return base64.urlsafe_b64encode(rid.encode()).decode().rstrip("=") + _SUFFIX


def _rid_of(file_name: str) -> str:
    encoded = file_name.removesuffix(_SUFFIX)
    try:
        rid = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise WireError("the name of the file is not base64 of a RID") from error
    check_rid(rid)
    return rid


def _replace(folder: str, name: str, data: bytes) -> None:
    """Replace a file; without fsync, since the journal still holds the change."""
    temporary = f"{folder}/{_TEMPORARY}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)
    os.replace(temporary, f"{folder}/{name}")  # noqa: PTH105 - thousands of files: Path costs as much as the call


def _set_aside(path: Path, error: Exception) -> None:
    aside = path.with_name(path.name.removesuffix(_SUFFIX) + _ASIDE)
    log.warning("koi_cache_file_set_aside", file=str(aside), reason=str(error))
    try:
        path.replace(aside)
    except OSError as problem:
        log.warning("koi_cache_file_unreadable", file=str(path), reason=str(problem))
