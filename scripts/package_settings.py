"""Where packages come from on this machine: the settings of pip and of uv, read as those two read them.

Standard library only: this runs before anything is installed. A setting of uv wins over the same
setting of pip; inside each, the environment wins over the files.
"""

from __future__ import annotations

import configparser
import os
import shlex
import ssl
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PYPI = "https://pypi.org/simple"
TRUE_WORDS = frozenset({"1", "true", "yes", "on", "y", "t"})


@dataclass(frozen=True)
class PackageSettings:
    """One answer to: which indexes, which certificates, which hosts are trusted, how long to wait."""

    index_url: str = PYPI
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    certificates: str | None = None
    client_certificate: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout_s: float = 60.0

    @property
    def is_pypi(self) -> bool:
        """Whether the lock file's own addresses may be used as they stand."""
        return not self.no_index and self.index_url == PYPI

    def uv_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment in which uv trusts and waits as pip would; what the user set for uv stays."""
        result = dict(environment)
        result["UV_PYTHON_DOWNLOADS"] = "never"
        if self.is_pypi:
            # uv compares spellings: even "https://pypi.org/simple/" would make --locked fail.
            result.pop("UV_DEFAULT_INDEX", None)
            result.pop("UV_INDEX_URL", None)
        if self.certificates:
            result.setdefault("SSL_CERT_FILE", self.certificates)
        elif (
            not {"SSL_CERT_FILE", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS"} & result.keys()
            and _system_certificates()
        ):
            result["UV_SYSTEM_CERTS"] = "true"
        if self.client_certificate:
            result.setdefault("SSL_CLIENT_CERT", self.client_certificate)
        if self.trusted_hosts:
            result.setdefault("UV_INSECURE_HOST", " ".join(self.trusted_hosts))
        result.setdefault("UV_HTTP_TIMEOUT", str(max(int(self.timeout_s), 60)))
        return result

    def index_environment(self) -> dict[str, str]:
        """The same indexes for ``uv pip``; not as options, because an address may hold a password."""
        result = {"UV_DEFAULT_INDEX": self.index_url}
        if self.extra_index_urls:
            # Each file's hash is required, so the best version may be taken from any of them.
            result |= {"UV_INDEX": " ".join(self.extra_index_urls), "UV_INDEX_STRATEGY": "unsafe-best-match"}
        if self.find_links:
            result["UV_FIND_LINKS"] = ",".join(self.find_links)
        return result


def read_package_settings(environment: Mapping[str, str] = os.environ) -> PackageSettings:
    """The settings in force for this user, from the environment and the configuration files."""
    pip = _pip_settings(environment)
    uv = _uv_settings(environment)
    index_url = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    index_url = index_url or uv.get("index-url") or pip.get("index-url") or PYPI
    extra = _words(environment.get("UV_INDEX")) + _words(environment.get("UV_EXTRA_INDEX_URL"))
    links = environment.get("UV_FIND_LINKS", "").replace(",", " ") or pip.get("find-links")
    no_index = environment.get("UV_NO_INDEX") or pip.get("no-index") or ""
    trusted = environment.get("UV_INSECURE_HOST") or pip.get("trusted-host")
    return PackageSettings(
        index_url=_without_name(index_url).rstrip("/"),
        extra_index_urls=tuple(map(_without_name, extra or _words(pip.get("extra-index-url")))),
        find_links=tuple(_words(links)),
        no_index=no_index.strip().lower() in TRUE_WORDS,
        certificates=environment.get("SSL_CERT_FILE")
        or pip.get("cert")
        or environment.get("REQUESTS_CA_BUNDLE")
        or environment.get("CURL_CA_BUNDLE"),
        client_certificate=environment.get("SSL_CLIENT_CERT") or pip.get("client-cert"),
        trusted_hosts=tuple(_words(trusted)),
        timeout_s=float(environment.get("UV_HTTP_TIMEOUT") or pip.get("timeout") or 60),
    )


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for path in _pip_files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise SystemExit(f"retinue: pip's configuration file {path} cannot be read: {error}") from None
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {key.lower().replace("_", "-"): value for key, value in parser.items(section)}
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    settings.setdefault("timeout", settings.get("default-timeout", ""))
    return settings


def _pip_files(environment: Mapping[str, str]) -> list[Path]:
    """pip's files from the weakest to the strongest (its documentation, "Configuration files")."""
    chosen = environment.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    home = Path(environment.get("HOME") or Path.home())
    shared = [Path(folder) / "pip/pip.conf" for folder in _paths(environment, "XDG_CONFIG_DIRS", "/etc/xdg")]
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    files = [*shared, Path("/etc/pip.conf"), home / ".pip/pip.conf", own / "pip/pip.conf"]
    files.append(Path(sys.prefix) / "pip.conf")
    return [*files, Path(chosen)] if chosen else files


def _uv_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The default index of uv's own files; the rest of them uv reads itself."""
    home = Path(environment.get("HOME") or Path.home())
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path(folder) / "uv/uv.toml" for folder in _paths(environment, "XDG_CONFIG_DIRS", "/etc/xdg")]
    files += [Path("/etc/uv/uv.toml"), own / "uv/uv.toml"]
    if chosen := environment.get("UV_CONFIG_FILE"):
        files = [Path(chosen)]
    settings: dict[str, str] = {}
    for path in files:
        if not path.is_file():
            continue
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SystemExit(f"retinue: uv's configuration file {path} cannot be read: {error}") from None
        if isinstance(content.get("index-url"), str):
            settings["index-url"] = content["index-url"]
        for index in content.get("index", []):
            if index.get("default") and isinstance(index.get("url"), str):
                settings["index-url"] = index["url"]
    return settings


def _paths(environment: Mapping[str, str], name: str, default: str) -> Iterable[str]:
    return reversed((environment.get(name) or default).split(os.pathsep))


def _words(text: str | None) -> list[str]:
    return shlex.split(text or "", comments=False)


def _without_name(index: str) -> str:
    """uv allows ``name=url``; a url with a query holds ``=`` too, but only after its scheme."""
    name, separator, url = index.partition("=")
    return url if separator and "://" not in name else index


def _system_certificates() -> bool:
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile and Path(paths.cafile).is_file())
