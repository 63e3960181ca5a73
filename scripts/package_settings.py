"""Reads the package sources of this machine: the settings of pip and uv, under pip's names.

Standard library only: this runs before anything is installed. A setting of uv wins over the same setting
of pip; within each, the environment wins over the files.
"""

from __future__ import annotations

import configparser
import os
import ssl
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

Settings = Mapping[str, str]
"""``index-url``, ``cert`` and so on as in pip's configuration files; several values are split at blanks."""

PYPI = "https://pypi.org/simple"

_OF_UV = {
    "index-url": ("UV_INDEX_URL", "UV_DEFAULT_INDEX"),
    "extra-index-url": ("UV_EXTRA_INDEX_URL", "UV_INDEX"),
    "find-links": ("UV_FIND_LINKS",),
    "no-index": ("UV_NO_INDEX",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "trusted-host": ("UV_INSECURE_HOST",),
}
"""uv's variables for each setting, the strongest last."""


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force for this user, from the environment and the configuration files."""
    settings = _read_pip_files(environment)
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    certificates = environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    if certificates:
        settings.setdefault("cert", certificates)
    if index := _read_uv_index(environment):
        settings["index-url"] = index
    for key, names in _OF_UV.items():
        for name in names:
            if chosen := environment.get(name):
                settings[key] = chosen.replace(",", " ") if key == "find-links" else chosen
    for key in ("index-url", "extra-index-url"):
        settings[key] = " ".join(_without_name(url).rstrip("/") for url in settings.get(key, "").split())
    return settings


def is_pypi(settings: Settings) -> bool:
    """Whether the addresses in the lock file may be used."""
    index = settings.get("index-url") or PYPI
    return not is_true(settings.get("no-index")) and index.rstrip("/") == PYPI


def is_true(value: str | None) -> bool:
    """Whether a switch is on, in pip's and uv's spellings."""
    return (value or "").strip().lower() in {"1", "true", "yes", "on", "y", "t"}


def make_uv_environment(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which uv uses these settings.

    Addresses go by environment, not as options, because they may hold passwords.
    """
    result = {**environment, "UV_PYTHON_DOWNLOADS": "never"}
    for key in ("cert", "client-cert", "trusted-host"):
        if value := settings.get(key):
            result[_OF_UV[key][-1]] = " ".join(value.split())
    has_certificates = {"SSL_CERT_FILE", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS"} & result.keys()
    if not has_certificates and Path(ssl.get_default_verify_paths().cafile or "/nonexistent").is_file():
        result["UV_SYSTEM_CERTS"] = "true"
    timeout_s = settings.get("timeout") or settings.get("default-timeout") or "0"
    result.setdefault("UV_HTTP_TIMEOUT", str(max(60, int(float(timeout_s)))))
    if is_pypi(settings):
        # uv compares spellings: even "https://pypi.org/simple/" would make --locked fail.
        result.pop("UV_DEFAULT_INDEX", None)
        result.pop("UV_INDEX_URL", None)
        return result
    result["UV_DEFAULT_INDEX"] = settings.get("index-url") or PYPI
    if extra := settings.get("extra-index-url"):
        # Each file's hash is required, so the best version may be taken from any index.
        result |= {"UV_INDEX": extra, "UV_INDEX_STRATEGY": "unsafe-best-match"}
    if links := settings.get("find-links"):
        result["UV_FIND_LINKS"] = ",".join(links.split())
    return result


def _read_pip_files(environment: Mapping[str, str]) -> dict[str, str]:
    """pip's files, the strongest last (its documentation, "Configuration files")."""
    chosen = environment.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return {}
    home, own, shared = _folders(environment)
    files = [*(folder / "pip/pip.conf" for folder in shared), Path("/etc/pip.conf"), home / ".pip/pip.conf"]
    files += [own / "pip/pip.conf", Path(sys.prefix) / "pip.conf", *([Path(chosen)] if chosen else [])]
    parser = configparser.RawConfigParser()
    try:
        parser.read(files, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise SystemExit(f"retinue: a configuration file of pip cannot be read: {error}") from None
    sections = [parser[section] for section in ("global", "install") if parser.has_section(section)]
    return {key.replace("_", "-"): value for section in sections for key, value in section.items()}


def _read_uv_index(environment: Mapping[str, str]) -> str | None:
    """The default index of uv's own files; the rest of them uv reads itself."""
    _, own, shared = _folders(environment)
    files = [folder / "uv/uv.toml" for folder in (own, Path("/etc"), *reversed(shared))]
    if chosen := environment.get("UV_CONFIG_FILE"):
        files = [Path(chosen)]
    for path in filter(Path.is_file, files):
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SystemExit(f"retinue: uv's configuration file {path} cannot be read: {error}") from None
        urls = [index.get("url") for index in content.get("index", []) if index.get("default")]
        if index := next(iter([*urls, content.get("index-url")]), None):
            return str(index)
    return None


def _folders(environment: Mapping[str, str]) -> tuple[Path, Path, list[Path]]:
    """The home folder, the user's configuration folder, and the shared ones, the strongest last."""
    home = Path(environment.get("HOME") or Path.home())
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    shared = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    return home, own, [Path(folder) for folder in reversed(shared)]


def _without_name(index: str) -> str:
    """uv allows ``name=url``; a url with a query holds ``=`` too, but only after its scheme."""
    name, separator, url = index.partition("=")
    return url if separator and "://" not in name else index
