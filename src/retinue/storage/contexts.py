"""Contexts of the command line: named hubs elsewhere, each with its URL and token.

They are in ``contexts.json`` (mode 0600) in the user's configuration folder, not in a state folder: a person
works with one list of hubs in every folder. ``local`` stands for the hub of the state folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from retinue.core.errors import InvalidSettingError, StateDamagedError, StateError
from retinue.core.text import suggest
from retinue.storage.files import OTHERS, hold_lock, replace_file, storage_errors

LOCAL = "local"
_FILE = "contexts.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENDPOINTS = frozenset({"mcp", "execute"})
"""Ends of URLs that people have at hand, and that are not the URL of a hub."""


def find_configuration_folder(environ: Mapping[str, str]) -> Path:
    """``retinue`` in the user's configuration folder: ``XDG_CONFIG_HOME``, else ``~/.config``."""
    base = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home()) / ".config"
    return Path(base) / "retinue"


@dataclass(frozen=True, slots=True)
class HubContext:
    """A hub and the token for it; None where it accepts calls without one."""

    url: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"HubContext({self.url})"


@dataclass(frozen=True, slots=True)
class HubContexts:
    """The contexts by name; ``current`` is the one in use, None for the hub of the state folder."""

    by_name: Mapping[str, HubContext]
    current: str | None = None

    def find(self, name: str) -> HubContext:
        """The context of this name; raises InvalidSettingError."""
        if name in self.by_name:
            return self.by_name[name]
        near = suggest(name, self.by_name)
        remedy = f"did you mean {' or '.join(near)}?" if near else "list them: retinue context list"
        raise InvalidSettingError("context", f"no context is named {name}", remedy=remedy)

    def token_for(self, url: str, *, first: str | None = None) -> str | None:
        """The token of a context with this scheme, host and port: ``first``, the one in use, or any."""
        place = _origin(url)
        at_place = {
            name: context.token for name, context in self.by_name.items() if _origin(context.url) == place
        }
        for name in (first, self.current, *at_place):
            if name in at_place:
                return at_place[name]
        return None


class ContextFile:
    """The file of the contexts in a configuration folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE

    def read(self) -> HubContexts:
        """The contexts. Raises StateDamagedError, and StateError for a file that other users may read."""
        try:
            content = self.path.read_bytes()
            mode = self.path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return HubContexts({})
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}") from error
        if mode & OTHERS:
            raise StateError(
                f"{self.path} holds tokens, and other users may read it",
                remedy=f"chmod 600 {self.path}",
            )
        try:
            document = orjson.loads(content)
            contexts = {
                str(name): HubContext(
                    str(row["url"]), None if row.get("token") is None else str(row["token"])
                )
                for name, row in document["contexts"].items()
            }
            current = document.get("current")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateDamagedError(
                str(self.path), "it holds no contexts", remedy="move the file away, and add them again"
            ) from error
        return HubContexts(contexts, current if current in contexts else None)

    def add(self, name: str, context: HubContext) -> None:
        """Store a context. Raises InvalidSettingError for a name that is taken or reserved, and for a URL."""
        if name == LOCAL or not _NAME.fullmatch(name):
            raise InvalidSettingError(
                "NAME",
                f"{name[:80]!r} cannot be the name of a context"
                + (": it stands for the hub of the state folder" if name == LOCAL else ""),
                remedy="choose another: letters, digits and -, at most 64",
            )
        checked = replace(context, url=check_hub_url(context.url, "URL"))
        with self._locked():
            contexts = self.read()
            if name in contexts.by_name:
                raise InvalidSettingError(
                    "NAME",
                    f"the context {name} exists, with {contexts.by_name[name].url}",
                    remedy=f"remove it first: retinue context remove {name}",
                )
            self._write(replace(contexts, by_name={**contexts.by_name, name: checked}))

    def use(self, name: str) -> HubContext | None:
        """Use a context from now on; None for ``local``. Raises InvalidSettingError."""
        with self._locked():
            contexts = self.read()
            context = None if name == LOCAL else contexts.find(name)
            self._write(replace(contexts, current=None if context is None else name))
        return context

    def remove(self, name: str) -> bool:
        """Remove a context; True if it was in use. Raises InvalidSettingError."""
        with self._locked():
            contexts = self.read()
            contexts.find(name)
            left = {other: context for other, context in contexts.by_name.items() if other != name}
            is_current = contexts.current == name
            self._write(HubContexts(left, None if is_current else contexts.current))
        return is_current

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock of the file while it is changed."""
        with storage_errors(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(Path(f"{self.path}.lock"), mode=0o600):
            yield

    def _write(self, contexts: HubContexts) -> None:
        rows = {
            name: {"url": context.url, **({} if context.token is None else {"token": context.token})}
            for name, context in contexts.by_name.items()
        }
        document = {**({} if contexts.current is None else {"current": contexts.current}), "contexts": rows}
        with storage_errors(self.path):
            replace_file(self.path, orjson.dumps(document, option=orjson.OPT_INDENT_2), mode=0o600)


def check_hub_url(text: str, field: str) -> str:
    """The URL of a hub without a slash at its end; raises InvalidSettingError, which quotes no password."""
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not text.isprintable() or " " in text:
        shown = repr(text[:80]) if "@" not in text else "it"
        raise InvalidSettingError(field, f"{shown} is not the URL of a hub", remedy="write http://host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidSettingError(
            field,
            "it has a user, a query or a fragment",
            remedy="leave them out; a token is set by RETINUE_TOKEN or stored by retinue context add",
        )
    base, _, endpoint = text.rstrip("/").rpartition("/")
    if endpoint in _ENDPOINTS and parts.path.strip("/"):
        raise InvalidSettingError(
            field, f"it is the endpoint /{endpoint} of a hub", remedy=f"write {base} for the hub itself"
        )
    return text.rstrip("/")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
