"""Which module a piece of free text asks about."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PATH = re.compile(r"(?:[A-Za-z]:)?[^\s'\"`]*\.py\b")
_QUOTED = re.compile(r"[`'\"]([A-Za-z_][\w.]*)[`'\"]")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_MARKED = (
    re.compile(r"\b(?:module|package|library)\s+(?:named\s+|called\s+)?([A-Za-z_][\w.]*)"),
    re.compile(r"\b([A-Za-z_][\w.]*)\s+(?:module|package|library)\b"),
)
_FOR = re.compile(
    r"\b(?:tests?|testing|cover|check)\s+(?:for|of)?\s*(?:the\s+)?([A-Za-z_][\w.]*\w|[A-Za-z_])"
)
_PROSE = frozenset(
    {"a", "an", "the", "python", "my", "this", "that", "your", "our", "some", "standard", "for", "of", "with"}
    | {"tests", "test", "property", "based", "every", "all", "it", "is", "and", "in", "its", "code"}
    | {"module", "package", "library", "named", "called", "function", "functions", "file", "class"}
)


def find_path(requirements: str) -> str | None:
    """The source file that the text names, if it names one."""
    match = _PATH.search(requirements)
    return match.group(0) if match else None


def list_names(requirements: str) -> Sequence[str]:
    """Importable names that the text may mean, the likeliest first; prose words are never taken for them.

    A text of one word is a name; a sentence marks it: quoted, dotted, "the json module", "tests for json".
    """
    text = requirements.strip()
    if _DOTTED.fullmatch(text):
        return [text]
    found = [match.group(1) for match in _QUOTED.finditer(text)]
    found += [match.group(1) for pattern in _MARKED for match in pattern.finditer(text)]
    found += [match.group(0) for match in _DOTTED.finditer(text) if "." in match.group(0)]
    found += [match.group(1) for match in _FOR.finditer(text)]
    names = [name.strip(".") for name in found]
    return [name for name in dict.fromkeys(names) if name and name.lower() not in _PROSE]
