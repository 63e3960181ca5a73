"""The files of a team: which paths and sizes are accepted, on packing and on unpacking alike."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

MAX_FILES = 2_000
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_LAYER_BYTES = 64 * 1024 * 1024
MAX_TEAM_BYTES = 256 * 1024 * 1024
MAX_PATH_BYTES = 240

WHEELS_LAYER, ARCHIVES_LAYER = "wheels", "npm"
"""The kinds of the layers of packages, which only ``retinue pack --vendor`` writes."""

LAYERS = (
    *("team", "agents", "prompts", "workflows", "policies", "documents", "imports", "traces"),
    *(WHEELS_LAYER, ARCHIVES_LAYER),
)
"""The kinds of layers, in the order of the manifest."""

_FILE_LIMITS_BYTES = dict.fromkeys((WHEELS_LAYER, ARCHIVES_LAYER), MAX_LAYER_BYTES)

_REFUSED_NAMES = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", ".env", ".netrc", ".npmrc", ".pypirc"),
        # Python runs these when it starts
        *("sitecustomize.py", "usercustomize.py", "pyvenv.cfg"),
        # the settings of the machine that runs the team
        "retinue.toml",
    }
)
_REFUSED_ENDINGS = (".pth", ".pem", ".key", ".p12", ".pfx", ".pyc", ".pyo", ".so", ".dylib", ".dll")
_ODD = re.compile(r'[\\:*?"<>|]')


@dataclass(frozen=True, slots=True)
class TeamFile:
    """One file of a team: its path below the folder of ``team.toml``, its layer and its content."""

    path: str
    layer: str
    content: bytes

    @property
    def row(self) -> FileRow:
        """The file as the config of the artifact lists it."""
        return FileRow(self.path, self.layer, len(self.content), hashlib.sha256(self.content).hexdigest())


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file as the config lists it: path, layer, size and SHA-256 in hex."""

    path: str
    layer: str
    size_bytes: int
    sha256: str


def find_path_problem(path: str) -> str:
    """Why a path is refused, as the end of a sentence; "" for an accepted one.

    Accepted are relative paths in NFC of printable names, which no common file system reads differently.
    """
    if not path or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        return f"is empty or over {MAX_PATH_BYTES} bytes"
    if not path.isprintable() or _ODD.search(path):
        return "has characters that file systems read differently"
    if unicodedata.normalize("NFC", path) != path:
        return "is not in the Unicode form NFC"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "is absolute, or leaves the folder of the team"
        if part != part.strip() or part.endswith("."):
            return "has a name that begins or ends with a space or ends with a dot"
        name = part.casefold()
        if name in _REFUSED_NAMES or name.endswith(_REFUSED_ENDINGS) or name.startswith(".env."):
            return f"has the name {part}, which is never part of a team"
    return ""


def find_list_problem(rows: Iterable[FileRow]) -> str:
    """Why a list of files is refused, as a sentence without its end; "" for an accepted one."""
    total_bytes, count = 0, 0
    layers: dict[str, int] = {}
    names: dict[str, str] = {}
    for row in rows:
        count += 1
        if problem := find_path_problem(row.path):
            return f"the path {row.path[:80]!r} {problem}"
        if row.layer not in LAYERS:
            return f"{row.path} is in the layer {row.layer[:40]!r}, which does not exist"
        limit_bytes = _FILE_LIMITS_BYTES.get(row.layer, MAX_FILE_BYTES)
        if not 0 <= row.size_bytes <= limit_bytes:
            return f"{row.path} has {row.size_bytes:,} bytes; a file has at most {limit_bytes:,}"
        total_bytes += row.size_bytes
        layers[row.layer] = layers.get(row.layer, 0) + row.size_bytes + 4096
        for name in _with_folders(row.path):
            kept = names.setdefault(name.casefold(), name)
            if kept != name:
                return f"{kept} and {name} differ only in upper and lower case"
        if names.get(f"\0{row.path.casefold()}"):
            return f"{row.path} is there twice"
        names[f"\0{row.path.casefold()}"] = row.path
    folders = {folder for name in list(names) if name[0] == "\0" for folder in _with_folders(name[1:])[1:]}
    if clash := next((folder for folder in folders if f"\0{folder}" in names), None):
        return f"{clash} is a file and a folder"
    if count > MAX_FILES:
        return f"it has {count:,} files; a team has at most {MAX_FILES:,}"
    if total_bytes > MAX_TEAM_BYTES:
        return f"it has {total_bytes:,} bytes; a team has at most {MAX_TEAM_BYTES:,}"
    if large := next((name for name, size in layers.items() if size > MAX_LAYER_BYTES), None):
        return f"its layer {large} is over {MAX_LAYER_BYTES:,} bytes"
    return ""


def _with_folders(path: str) -> list[str]:
    """The path and the folders above it."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
