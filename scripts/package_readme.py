"""Converts the README for a package index: removes pictures and links into the repository.

A metadata hook of hatchling, run at each build; it needs nothing but the standard library and hatchling.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import (  # type: ignore[import-not-found, unused-ignore]
        MetadataHookInterface as _Hook,
    )
except ImportError:  # outside of a build, where only `render_readme` is used
    _Hook = object

_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://)[^)]*\)")


def render_readme(text: str) -> str:
    """Markdown without relative links and pictures; code is left as it is."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if part.startswith("```") else _LINK.sub(r"\1", _PICTURE.sub("", part)) for part in parts
    )


class PackageReadme(_Hook):  # type: ignore[misc, valid-type, unused-ignore]
    """Fills the dynamic field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": render_readme(text)}
