"""The kinds of registries that one suite runs over, each with the way in that it wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette

from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.server import pull as oci
from retinue.web.rejections import REGISTRY_PATH
from retinue.web.security import LOCAL_TOKEN, SecurityMiddleware, SecuritySettings, Tokens
from tests.registry.token_server import ISSUER, PASSWORD, SERVICE, USER, TokenServer, token_server
from tests.services import docker_registry
from tests.serving import serve_app

TOKEN = "the-local-token"
BCRYPT_OF_PASSWORD = "$2b$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK"
"""Cost 5: docker-registry works it out at every request."""

KINDS = ("layout", "door", "plain", "basic", "token")


@dataclass(frozen=True, slots=True)
class Place:
    """A registry of one kind: ``url`` (or folder) without a login, ``location`` with one."""

    kind: str
    url: str
    location: str
    tokens: TokenServer | None = None

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]


def with_login(url: str, user: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{password}@{rest}"


def registry_app(root: Path) -> SecurityMiddleware:
    """The hub's own endpoint over the layouts below ``root``, behind the security middleware."""
    layout = LayoutRegistry(root)
    return SecurityMiddleware(
        Starlette(routes=oci.routes(layout, layout)),
        SecuritySettings(any_media_type=(REGISTRY_PATH,)),
        Tokens({TOKEN: LOCAL_TOKEN}),
    )


@asynccontextmanager
async def own_endpoint(root: Path) -> AsyncIterator[Place]:
    """The same on a port."""
    async with serve_app(registry_app(root)) as url:
        yield Place("door", url, with_login(url, "retinue", TOKEN))


@contextmanager
def registry_with_password(folder: Path) -> Iterator[Place]:
    """A docker-registry that wants a name and a password for everything."""
    passwords = folder / "htpasswd"
    passwords.write_text(f"{USER}:{BCRYPT_OF_PASSWORD}\n")
    with docker_registry(folder, auth=f"{{htpasswd: {{realm: hub, path: '{passwords}'}}}}") as url:
        yield Place("basic", url, with_login(url, USER, PASSWORD))


@contextmanager
def registry_with_tokens(folder: Path, *, shows_catalog: bool = True) -> Iterator[Place]:
    """A docker-registry that takes only the tokens of a server beside it."""
    with token_server(shows_catalog=shows_catalog) as server:
        bundle = folder / "roots.pem"
        bundle.write_bytes(server.authority.pem)
        auth = (
            f"{{token: {{realm: '{server.url}', service: {SERVICE}, issuer: {ISSUER}, "
            f"rootcertbundle: '{bundle}'}}}}"
        )
        with docker_registry(folder, auth=auth) as url:
            yield Place("token", url, with_login(url, USER, PASSWORD), server)
