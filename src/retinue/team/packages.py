"""The packages of a lock: of ``pylock.toml`` (PEP 751) and of ``package-lock.json``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

import orjson


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A package of a lock; ``licence`` is "" where the lock does not say it."""

    version: str
    licence: str = ""

    @property
    def shown(self) -> str:
        """Version and licence as text."""
        return f"{self.version} ({self.licence})" if self.licence else self.version


def list_packages(path: str | None, content: bytes) -> dict[str, LockedPackage]:
    """The packages of a lock file by name; {} for none and for one that cannot be read."""
    try:
        if path is None:
            return {}
        if path.endswith(".json"):
            rows = orjson.loads(content)["packages"]
            return {
                name.rpartition("node_modules/")[2]: LockedPackage(
                    str(row.get("version", "")), str(row.get("license", ""))
                )
                for name, row in rows.items()
                if name
            }
        return {
            row["name"]: LockedPackage(str(row.get("version", "")))
            for row in tomllib.loads(content.decode()).get("packages", [])
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
