"""``GET /health``: this process answers (SPEC 2, formats)."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def _answer(request: Request) -> JSONResponse:
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return JSONResponse({"status": "ok", "timestamp": stamp})


def health_route(path: str = "/health") -> Route:
    """The door that tells whether the process is alive; it needs no token."""
    return Route(path, _answer, methods=["GET"])
