"""``GET /.well-known/oauth-protected-resource``: who gives out tokens for these doors (RFC 9728).

It needs no token. The same answer stands for each door below its path, whether or not there is such a
one: the metadata tells nothing of which agents exist.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from retinue.surfaces.challenges import METADATA_PATH, ProtectedResource

MAX_PATH_LENGTH = 500


def metadata_routes(resource: ProtectedResource | None) -> list[BaseRoute]:
    """The routes, none where no authorization server is named."""
    if resource is None:
        return []

    async def answer(request: Request) -> Response:
        path = request.path_params.get("path", "")
        if len(path) > MAX_PATH_LENGTH:
            return JSONResponse({"detail": "there is no door with so long a name"}, 404)
        base = f"{request.url.scheme}://{request.headers['host']}"
        door = f"/{path}" if path else ""
        headers = {"cache-control": "max-age=300", "access-control-allow-origin": "*"}
        return JSONResponse(resource.metadata(base, door), headers=headers)

    paths = (METADATA_PATH, METADATA_PATH + "/{path:path}")
    return [Route(path, answer, methods=["GET"]) for path in paths]
