"""The environment of child processes: inherited variables, and variables from the settings.

By default a child gets no variable that may hold a key, because a hub has the keys of all its children.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from string import Template

INHERITED = frozenset(
    {
        *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    }
)
"""Variables that every child gets."""

_OF_AGENTS = frozenset(
    {
        *("ALL_PROXY", "all_proxy", "SSL_CERT_DIR", "XDG_STATE_HOME"),
        # for the logins of registries, and the programs that keep them
        *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "DOCKER_CONFIG", "GNUPGHOME", "PASSWORD_STORE_DIR"),
        "XDG_RUNTIME_DIR",
    }
)
_PREFIXES_OF_AGENTS = ("OTEL_", "PYTHON", "RETINUE_")
"""Agents are processes of Retinue in the parent's Python, with its settings and its telemetry."""

_NOT_FOR_AGENTS = frozenset(f"RETINUE_{name}" for name in ("DATABASE", "JOIN", "TOKEN"))


def select_inherited(own: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``own`` that every child gets."""
    return {name: value for name, value in own.items() if name in INHERITED}


def select_for_agent(own: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``own`` that an agent gets."""
    return {name: value for name, value in own.items() if is_for_agent(name)}


def is_for_agent(name: str) -> bool:
    """Whether an agent gets the variable of this name."""
    if name in _NOT_FOR_AGENTS:
        return False
    return name in INHERITED or name in _OF_AGENTS or name.startswith(_PREFIXES_OF_AGENTS)


def with_home(own: Mapping[str, str], fallback: Path) -> dict[str, str]:
    """``own`` with a HOME that can be written: ``fallback``, made when needed, where its own cannot be.

    npm and uv keep their caches below HOME, and npm waits without an end where it cannot write. A service has
    no HOME, or one that does not exist.
    """
    home = own.get("HOME")
    if home and Path(home).is_dir() and os.access(home, os.W_OK | os.X_OK):
        return dict(own)
    with suppress(OSError):
        fallback.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {**own, "HOME": str(fallback)}


def fill_variables(texts: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The texts with ``${NAME}`` replaced by variables of ``own``; an unknown one stays as it is."""
    return {key: Template(text).safe_substitute(own) for key, text in texts.items()}


def find_missing(texts: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, str] | None:
    """The first key whose text names a variable as ``${NAME}`` that ``own`` lacks, and that variable."""
    for key, text in texts.items():
        for placeholder in Template.pattern.finditer(text):
            variable = placeholder["braced"]
            if variable is not None and variable not in own:
                return key, variable
    return None
