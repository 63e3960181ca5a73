"""A hub with pages on a real port, read and used as a browser does."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from retinue.web.issued_tokens import TokenFile
from tests.system import Hub, Reply, System, Wire

OWN = {"sec-fetch-site": "same-origin"}
"""The header with which a browser says that a page of the same server sends a form."""


@dataclass(slots=True)
class Site:
    """A hub with pages, an agent with an exposed skill and one of the mesh, voters, and what was called."""

    system: System
    hub: Hub
    wire: Wire
    called: list[str]

    def token(self, *scopes: str, name: str, agents: tuple[str, ...] = ()) -> str:
        _, text = TokenFile(self.system.state.keys).issue(scopes, name=name, agents=agents)
        return f"Bearer {text}"

    async def read(self, path: str, token: str) -> Reply:
        return await self.wire.get(f"{self.hub.url}{path}", authorization=token, accept="text/html")

    async def submit(self, path: str, entries: dict[str, str], token: str, **headers: str) -> Reply:
        form = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
        body = urlencode(entries).encode()
        return await self.wire.post(f"{self.hub.url}{path}", body, authorization=token, **form, **headers)

    def list_audit(self) -> list[tuple[str, str, str]]:
        """Caller, skill and status of each call of the dashboard that ended."""
        rows = reversed(self.hub.audit.recent(100))
        ended = [row for row in rows if row["type"] == "CALL:ENDED" and row["door"] == "dashboard"]
        return [(row["caller"], row["skill"], row["status"]) for row in ended]
