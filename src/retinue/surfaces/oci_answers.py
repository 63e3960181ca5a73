"""What both sides of the registry door share: its refusals, and the answers that every path may give.

The codes are those of the distribution spec 1.1, "Error Codes", which no other surface speaks; therefore
they are chosen here and not in ``faults``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from retinue.core.errors import (
    BusyError,
    ContentMissingError,
    DigestMismatchError,
    InvalidReferenceError,
    MalformedArtifactError,
    RepositoryTakenError,
    RetinueError,
    TooLargeError,
)
from retinue.protocols.oci.reference import is_digest, is_repository, is_tag
from retinue.protocols.oci.wire import ErrorCode, render_error

JSON_TYPE = "application/json"
API_VERSION = {"docker-distribution-api-version": "registry/2.0"}
STATUS: dict[ErrorCode, int] = {
    "NAME_UNKNOWN": 404,
    "NAME_INVALID": 400,
    "MANIFEST_UNKNOWN": 404,
    "MANIFEST_INVALID": 400,
    "MANIFEST_BLOB_UNKNOWN": 404,
    "BLOB_UNKNOWN": 404,
    "BLOB_UPLOAD_UNKNOWN": 404,
    "BLOB_UPLOAD_INVALID": 416,
    "DIGEST_INVALID": 400,
    "TAG_INVALID": 400,
    "SIZE_INVALID": 413,
    "PAGINATION_NUMBER_INVALID": 400,
    "UNAUTHORIZED": 401,
    "DENIED": 403,
    "UNSUPPORTED": 405,
    "TOOMANYREQUESTS": 429,
    "UNKNOWN": 500,
}
_CODES: dict[type[RetinueError], ErrorCode] = {
    InvalidReferenceError: "NAME_INVALID",
    ContentMissingError: "MANIFEST_BLOB_UNKNOWN",
    MalformedArtifactError: "MANIFEST_INVALID",
    DigestMismatchError: "DIGEST_INVALID",
    RepositoryTakenError: "DENIED",
    TooLargeError: "SIZE_INVALID",
    BusyError: "TOOMANYREQUESTS",
}
Handler = Callable[[Request], Awaitable[Response]]
_log = structlog.get_logger(__name__)


class Refusal(Exception):  # noqa: N818 - an answer of this door, never seen outside it
    """One of the spec's error codes, with further headers where it has some."""

    def __init__(self, code: ErrorCode, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = headers or {}


def answering(handler: Handler) -> Handler:
    """Turn the refusals of a handler, and what the registry raises, into error bodies."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            return _refuse(refusal.code, refusal.message, refusal.headers)
        except RetinueError as error:
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
            if code is not None:
                wait = {"retry-after": "1"} if isinstance(error, BusyError) else {}
                return _refuse(code, error.message, wait)
            # The message may name files of this machine: it goes to the log, not to the caller.
            _log.warning("registry door failed", path=request.url.path, error=error.message)
            return _refuse("UNKNOWN", "the registry cannot do this now; its log says why", {})
        except ClientDisconnect:
            return Response(status_code=499)

    return answer


def read_repository(request: Request) -> str:
    """The repository in the path. Raises Refusal."""
    name: str = request.path_params["name"]
    if not is_repository(name):
        raise Refusal("NAME_INVALID", "no repository can have this name")
    return name


def read_target(request: Request) -> str:
    """The tag or digest in the path. Raises Refusal."""
    target: str = request.path_params["target"]
    if ":" in target:
        return check_digest(target)
    if not is_tag(target):
        raise Refusal("TAG_INVALID", "a tag is up to 128 letters, digits, . _ and -")
    return target


async def read_body(request: Request, limit_bytes: int, what: str) -> bytes:
    """The whole body. Raises Refusal where it is over the limit; ``what`` names it there."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise Refusal("SIZE_INVALID", f"{what} is at most {limit_bytes:,} bytes")
    return bytes(body)


def check_digest(text: str) -> str:
    """The text itself. Raises Refusal unless it is a digest."""
    if not is_digest(text):
        raise Refusal("DIGEST_INVALID", "a digest is sha256: and 64 lower-case hex digits")
    return text


def _refuse(code: ErrorCode, message: str, headers: Mapping[str, str]) -> Response:
    status = STATUS[code]
    return Response(render_error(code, message), status, {**API_VERSION, **headers}, JSON_TYPE)
