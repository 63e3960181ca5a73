"""Puts the pages of docs/ into the wheel, without decisions and pictures; ``retinue docs`` shows them.

A build hook of hatchling; an editable installation reads the pages of the clone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import (  # type: ignore[import-not-found, unused-ignore]
        BuildHookInterface as _Hook,
    )
except ImportError:  # outside of a build, where only `list_pages` is used
    _Hook = object


def list_pages(docs: Path) -> dict[str, str]:
    """The files of the pages, and their places in the wheel."""
    pages = [page for folder in (docs, docs / "guides") for page in sorted(folder.glob("*.md"))]
    return {str(page): f"retinue/docs/{page.relative_to(docs).as_posix()}" for page in pages}


class PackageDocs(_Hook):  # type: ignore[misc, valid-type, unused-ignore]
    """Adds the pages to a wheel that is not editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"].update(list_pages(Path(self.root) / "docs"))
