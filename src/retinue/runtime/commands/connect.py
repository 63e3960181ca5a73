"""Adds the hub of this state to the configuration of an MCP client, and removes it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retinue.core.errors import InvalidSettingError
from retinue.mcp.client_configs.clients import CLIENTS, TOKEN_KEYS, Client, Places, get_client
from retinue.mcp.client_configs.config_files import (
    Changed,
    change_text,
    drop_backups,
    find_file,
    read_backups,
    read_text,
)
from retinue.mcp.client_configs.merging import without_empty
from retinue.mcp.client_configs.servers import FoundServer, is_hub, is_own_hub, read_server
from retinue.settings import Settings
from retinue.storage.state import State

PATH = "/mcp"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - read, not bound


@dataclass(frozen=True, slots=True)
class HubTarget:
    """The URL of a hub, which may not run yet; ``own`` means that it accepts the token of this state."""

    url: str
    running: bool
    own: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """A client and its configuration file; ``status`` is "connected", "found", "broken" or ""."""

    client: Client
    file: Path
    status: str


def places() -> Places:
    """The configuration folders of the current user."""
    home = os.environ.get("HOME") or os.environ.get("USERPROFILE") or str(Path.home())
    return Places(sys.platform, Path(home), os.environ)


def find_config(client: Client) -> Path:
    """The client's configuration file, whether it exists or not."""
    return find_file(client.files(places()))


def find_hub(settings: Settings, state: State, address: str | None = None) -> HubTarget:
    """The hub to connect to: the given one, else the state's running hub, else its configured address.

    Raises InvalidSettingError for an invalid URL, and if no hub runs and its port is not fixed.
    """
    running = state.read_hub()
    if address is not None:
        url = _check_url(address)
        own = running is not None and _origin(running.url) == _origin(url)
        return HubTarget(url, running=own, own=own or _origin(url) == _origin(_configured_url(settings)))
    if running is not None:
        return HubTarget(running.url.rstrip("/") + PATH, running=True, own=True)
    if settings.hub.port == 0:
        raise InvalidSettingError(
            "hub.port",
            "0 means any free port, and no hub is running",
            remedy="start the hub first, set a port, or use --stdio",
        )
    return HubTarget(_configured_url(settings) + PATH, running=False, own=True)


def render_entry(client: Client, state: State, hub: HubTarget | None) -> dict[str, Any]:
    """The client's entry: the URL of ``hub``, or the command ``retinue mcp`` if it is None.

    The token of the state is written for the state's own hub only.
    """
    if hub is None:
        command, *arguments = find_program()
        return client.render_stdio(command, [*arguments, "mcp"], {"RETINUE_HOME": str(state.root.absolute())})
    return client.render_http(hub.url, state.local_token() if hub.own else None)


def keep_token(client: Client, file: Path, name: str, entry: dict[str, Any], state: State) -> dict[str, Any]:
    """The entry for another hub, with the token that the user wrote into the entry for the same URL.

    The token of this state is not kept: it is for the state's own hub only.
    """
    text = read_text(file)
    old = None if text is None else client.read_entry(text, name, str(file))
    if not isinstance(old, dict) or old.get(client.url_key) != entry[client.url_key or ""]:
        return entry
    kept = {key: value for key, value in old.items() if key in TOKEN_KEYS}
    return entry if state.local_token() in str(kept) else entry | kept


def find_program(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The absolute command line of ``retinue``, for programs with another PATH."""
    beside = Path(sys.executable).parent / ("retinue.exe" if sys.platform == "win32" else "retinue")
    if beside.is_file():
        return [str(beside.absolute())]
    if program := shutil.which("retinue", path=environ.get("PATH")):
        return [str(Path(program).absolute())]
    return [sys.executable, "-m", "retinue"]


def connect(client: Client, file: Path, name: str, entry: dict[str, Any]) -> Changed:
    """Write the entry; an identical entry is left unchanged."""
    return change_text(
        file,
        lambda text: client.write_entry(text or "", name, entry, str(file)),
        secret=has_token(entry),
        backup=not has_backup(client, file),
    )


def disconnect(client: Client, file: Path, name: str) -> Changed:
    """Remove the entry.

    If the file differs from a backup only by the entry, the backup is restored byte for byte.
    """

    def restore(text: str | None) -> str | None:
        entry = None if text is None else client.read_entry(text, name, str(file))
        if text is not None and isinstance(entry, dict):
            for former in (*read_backups(file), None):
                if _adds_up(client, former, name, entry, text):
                    return former
        return text

    def remove(text: str | None) -> str | None:
        return None if text is None else client.remove_entry(text, name, str(file))

    # no backup: the replaced text differs by the entry only
    restored = change_text(file, restore, secret=False, backup=False)
    return restored if restored.changed else change_text(file, remove, secret=False, backup=False)


def has_backup(client: Client, file: Path) -> bool:
    """Whether a backup differs from the file by entries of hubs only, so that another one is not needed."""
    text = read_text(file)
    return text is not None and any(_is_same(client, text, former, file) for former in read_backups(file))


def drop_needless_backups(client: Client, file: Path) -> None:
    """Delete the backups of a file without an entry of a hub, because they may hold a token."""
    text = read_text(file) or ""
    if not any(is_hub(entry, client) for entry in client.list_entries(text, str(file)).values()):
        drop_backups(file)


def moves_file(state: State, client: Client) -> Path:
    """The note of the servers that were moved from this client into the mesh; exists while there are some."""
    return state.root / "moved-servers" / f"{client.name}.json"


def list_clients(name: str) -> list[Seen]:
    """The state of every supported client on this machine."""
    return [_look_at(client, name) for client in CLIENTS.values()]


@dataclass(frozen=True, slots=True)
class ServerContainer:
    """A container of servers in a client's file; ``folder`` is the project that they belong to."""

    file: Path
    container: tuple[str, ...]
    folder: Path | None = None


def find_places(client: Client, project: Path | None = None) -> list[ServerContainer]:
    """The user's servers first, then those of the project in this folder.

    Raises InvalidSettingError if the client has no configuration for projects.
    """
    file = find_config(client)
    containers = [ServerContainer(file, (client.container,))]
    if project is not None:
        if not client.project_file:
            with_projects = ", ".join(client.name for client in CLIENTS.values() if client.project_file)
            raise InvalidSettingError(
                "--project",
                f"{client.title} has no configuration for projects that is supported",
                remedy=f"leave it out; it is for {with_projects}",
            )
        folder = project.expanduser().absolute()
        if client.project_container is not None:
            containers.append(ServerContainer(file, client.project_container(folder), folder))
        if (own := folder / client.project_file).resolve() != file.resolve():
            containers.append(ServerContainer(own, (client.container,), folder))
    return containers


def read_servers(
    client: Client, place: ServerContainer, own_url: str | None
) -> list[tuple[FoundServer, Any]]:
    """The servers at a place with their entries; entries of a hub are left out.

    ``own_url`` is that of this hub, which stays. Raises InvalidSettingError for an invalid file.
    """
    text = read_text(place.file)
    entries = {} if text is None else client.list_entries(text, str(place.file), place.container)
    rows = []
    for name, entry in entries.items():
        if is_hub(entry, client):
            continue
        server = read_server(name, entry, client, places(), place.folder)
        if server.table is not None and is_own_hub(server.table, own_url):
            server = FoundServer(name, None, "it is this hub")
        rows.append((server, entry))
    return rows


def list_servers(client_name: str, project: Path | None, own_url: str | None) -> list[FoundServer]:
    """The MCP servers in a client's configuration; entries of a hub are left out.

    Raises InvalidSettingError for an unknown client and an invalid file.
    """
    client = get_client(client_name)
    per_place = [read_servers(client, place, own_url) for place in find_places(client, project)]
    return [server for servers in per_place for server, _ in servers]


def is_seen(client: Client, file: Path) -> bool:
    """Whether the client seems to be installed: its file, folder or program exists."""
    if file.exists() or (client.program and shutil.which(client.program)):
        return True
    return file.parent != places().home and file.parent.is_dir()


def has_token(entry: Mapping[str, Any]) -> bool:
    """Whether the entry contains a token."""
    return not TOKEN_KEYS.isdisjoint(entry)


def _look_at(client: Client, name: str) -> Seen:
    file = find_config(client)
    try:
        text = read_text(file)
        entry = None if text is None else client.read_entry(text, name, str(file))
    except InvalidSettingError:
        return Seen(client, file, "broken")
    if entry is not None:
        return Seen(client, file, "connected")
    return Seen(client, file, "found" if is_seen(client, file) else "")


def _adds_up(client: Client, former: str | None, name: str, entry: dict[str, Any], text: str) -> bool:
    """Whether ``former`` with the entry added equals ``text``."""
    try:
        if former is not None and client.read_entry(former, name, "") is not None:
            return False
        return client.write_entry(former or "", name, entry, "") == text
    except InvalidSettingError:
        return False


def _is_same(client: Client, text: str, former: str, file: Path) -> bool:
    """Whether the documents are equal without the entries of hubs."""

    def rest_of(document: dict[str, Any]) -> Any:
        entries = document.get(client.container)
        if isinstance(entries, dict):
            others = {name: entry for name, entry in entries.items() if not is_hub(entry, client)}
            document = {**document, client.container: others}
        return without_empty(document)

    try:
        documents = [dict(client.read_document(part, str(file))) for part in (text, former)]
    except InvalidSettingError:
        return False
    return bool(rest_of(documents[0]) == rest_of(documents[1]))


def _configured_url(settings: Settings) -> str:
    host = _ANY_ADDRESS.get(settings.hub.host, settings.hub.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.hub.port}"


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise InvalidSettingError("--url", f"{url[:80]!r} is not a URL", remedy="write http://host:port")
    return url if parts.path.rstrip("/") else url.rstrip("/") + PATH


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
