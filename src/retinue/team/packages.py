"""The packages of a lock: of ``pylock.toml`` (PEP 751) and of ``package-lock.json``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A package of a lock; ``licence`` is "" where the lock does not say it.

    ``sources`` are the addresses and hashes of its files. One that a lock has in several versions has all of
    them in ``version``.
    """

    version: str
    licence: str = ""
    sources: frozenset[str] = frozenset()

    @property
    def shown(self) -> str:
        """Version and licence as text."""
        return f"{self.version} ({self.licence})" if self.licence else self.version


def list_packages(path: str | None, content: bytes) -> dict[str, LockedPackage]:
    """The packages of a lock file by name; {} for none and for one that cannot be read."""
    try:
        if path is None:
            return {}
        rows = _read_npm(content) if path.endswith(".json") else _read_python(content)
        return _merge(rows)
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _merge(rows: Iterable[tuple[str, LockedPackage]]) -> dict[str, LockedPackage]:
    packages: dict[str, LockedPackage] = {}
    for name, row in rows:
        if (other := packages.get(name)) is not None:
            versions = dict.fromkeys([*other.version.split(", "), row.version])
            row = LockedPackage(
                ", ".join(sorted(versions)), other.licence or row.licence, other.sources | row.sources
            )
        packages[name] = row
    return packages


def _read_npm(content: bytes) -> Iterator[tuple[str, LockedPackage]]:
    for path, row in orjson.loads(content)["packages"].items():
        if path:
            sources = frozenset(str(row[key]) for key in ("resolved", "integrity") if key in row)
            name = path.rpartition("node_modules/")[2]
            yield name, LockedPackage(str(row.get("version", "")), str(row.get("license", "")), sources)


def _read_python(content: bytes) -> Iterator[tuple[str, LockedPackage]]:
    for row in tomllib.loads(content.decode()).get("packages", []):
        yield row["name"], LockedPackage(str(row.get("version", "")), sources=frozenset(_list_sources(row)))


def _list_sources(row: Mapping[str, Any]) -> Iterator[str]:
    """The files of a row of PEP 751, each as its keys with their values; "" for none."""
    for key in ("vcs", "directory", "archive", "sdist", "index", "wheels"):
        files = row.get(key, ())
        for file in files if isinstance(files, list) else [files] if files else []:
            yield f"{key} {orjson.dumps(_as_texts(file), option=orjson.OPT_SORT_KEYS).decode()}"


def _as_texts(value: Any) -> Any:
    # TOML has times, which JSON has not
    if isinstance(value, Mapping):
        return {key: _as_texts(inner) for key, inner in value.items() if key not in ("upload-time", "size")}
    return str(value)
