"""Reads registry credentials from Docker's ``config.json`` and from the replies of credential helpers.

``docker login``, ``skopeo login --compat-auth-file`` and ``oras login`` write this file (Docker CLI
reference, "Credential stores" and "Credential helpers").
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from retinue.core.errors import InvalidSettingError
from retinue.oci.codec.auth import RegistryCredentials

HUB_KEY = "https://index.docker.io/v1/"
_HUB_HOSTS = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_IDENTITY_USER = "<token>"
"""User name under which a helper returns an identity token."""

_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """Credentials and names of helper programs by host; ``store`` is the helper for all other hosts."""

    auths: Mapping[str, RegistryCredentials] = field(default_factory=dict)
    helpers: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None

    def find_helper(self, host: str) -> str | None:
        """The helper for ``host[:port]``: ``<x>`` of the program ``docker-credential-<x>``."""
        return self.helpers.get(_fold_host(host)) or self.store

    def find(self, host: str) -> RegistryCredentials | None:
        """The credentials for ``host[:port]`` in the file itself."""
        return self.auths.get(_fold_host(host))


def parse_docker_config(raw: bytes, *, where: str) -> DockerConfig:
    """Parse a ``config.json``; invalid entries are skipped.

    Raises InvalidSettingError naming ``where`` when it is not a JSON object.
    """
    try:
        document = orjson.loads(raw)
    except ValueError as error:
        raise InvalidSettingError(
            where, f"it is not JSON ({error})", remedy="correct the file, or log in again"
        ) from error
    if not isinstance(document, dict):
        raise InvalidSettingError(
            where, "it is not a JSON object", remedy="correct the file, or log in again"
        )
    auths = {
        _fold_host(host): credentials
        for host, entry in _entries(document.get("auths")).items()
        if isinstance(entry, dict) and (credentials := _parse_entry(entry)) is not None
    }
    helpers = {
        _fold_host(host): name
        for host, name in _entries(document.get("credHelpers")).items()
        if _is_helper_name(name)
    }
    store = document.get("credsStore")
    return DockerConfig(auths, helpers, store if _is_helper_name(store) else None)


def parse_helper_answer(raw: bytes) -> RegistryCredentials | None:
    """Parse the output of ``docker-credential-<x> get``: ``{"ServerURL", "Username", "Secret"}``."""
    try:
        answer = orjson.loads(raw)
    except ValueError:
        return None
    if not isinstance(answer, dict):
        return None
    username, secret = answer.get("Username"), answer.get("Secret")
    if not isinstance(username, str) or not isinstance(secret, str) or not secret:
        return None
    if username == _IDENTITY_USER:
        return RegistryCredentials(identity_token=secret)
    return RegistryCredentials(username, secret)


def render_helper_request(host: str) -> bytes:
    """Render the input of ``docker-credential-<x> get``: the server as ``docker login`` stored it."""
    return (HUB_KEY if _fold_host(host) == "docker.io" else host).encode()


def _parse_entry(entry: Mapping[str, Any]) -> RegistryCredentials | None:
    username, password = entry.get("username"), entry.get("password")
    packed = entry.get("auth")
    if isinstance(packed, str) and packed:
        try:
            username, _, password = base64.b64decode(packed, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        password = password.rstrip("\x00")
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return RegistryCredentials(username if isinstance(username, str) else "", identity_token=token)
    if not isinstance(username, str) or not isinstance(password, str) or not username:
        return None
    return RegistryCredentials(username, password)


def _fold_host(text: str) -> str:
    """Normalise a key, which may be a url, to ``host[:port]``; all hosts of Docker Hub are equal."""
    host = text.partition("://")[2] or text
    host = host.partition("/")[0].lower()
    return "docker.io" if host in _HUB_HOSTS else host


def _entries(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_helper_name(value: Any) -> bool:
    """Whether a value is safe as suffix of a program name: never a path."""
    return isinstance(value, str) and _HELPER.fullmatch(value) is not None
