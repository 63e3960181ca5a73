"""Error responses and request parsing shared by pull and push.

The codes are those of the distribution spec 1.1, "Error Codes". No other protocol uses them, so they are not
in `retinue.web.error_table`.
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
    PolicyDeniedError,
    RepositoryTakenError,
    RetinueError,
    TooLargeError,
)
from retinue.oci.codec.reference import is_digest, is_repository, is_tag
from retinue.oci.codec.wire import ErrorCode, render_error

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
    PolicyDeniedError: "DENIED",
    TooLargeError: "SIZE_INVALID",
    BusyError: "TOOMANYREQUESTS",
}
Handler = Callable[[Request], Awaitable[Response]]
_log = structlog.get_logger(__name__)


class RegistryErrorResponse(Exception):  # noqa: N818 - a response, never raised beyond this package
    """An error response with a code of the spec and optional headers."""

    def __init__(self, code: ErrorCode, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = headers or {}


def with_error_responses(handler: Handler) -> Handler:
    """Wrap a handler: a Refusal and errors of the registry become error responses."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RegistryErrorResponse as refusal:
            return _refuse(refusal.code, refusal.message, refusal.headers)
        except RetinueError as error:
            code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
            if code is not None:
                wait = {"retry-after": "1"} if isinstance(error, BusyError) else {}
                return _refuse(code, error.message, wait)
            # The message may contain paths of this machine: log it instead of sending it.
            _log.warning("registry door failed", path=request.url.path, error=error.message)
            return _refuse("UNKNOWN", "the registry failed to process the request; see its log", {})
        except ClientDisconnect:
            return Response(status_code=499)

    return answer


def read_repository(request: Request) -> str:
    """Return the repository in the path. Raises Refusal."""
    name: str = request.path_params["name"]
    if not is_repository(name):
        raise RegistryErrorResponse("NAME_INVALID", "the path has no valid repository name")
    return name


def read_target(request: Request) -> str:
    """Return the tag or digest in the path. Raises Refusal."""
    target: str = request.path_params["target"]
    if ":" in target:
        return check_digest(target)
    if not is_tag(target):
        raise RegistryErrorResponse("TAG_INVALID", "a tag is up to 128 letters, digits, . _ and -")
    return target


async def read_body(request: Request, limit_bytes: int, what: str) -> bytes:
    """Read the whole body. Raises Refusal, naming ``what``, when it exceeds the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise RegistryErrorResponse("SIZE_INVALID", f"{what} may have at most {limit_bytes:,} bytes")
    return bytes(body)


def check_digest(text: str) -> str:
    """Return the text. Raises Refusal unless it is a digest."""
    if not is_digest(text):
        raise RegistryErrorResponse("DIGEST_INVALID", "a digest is sha256: and 64 lower-case hex digits")
    return text


def _refuse(code: ErrorCode, message: str, headers: Mapping[str, str]) -> Response:
    status = STATUS[code]
    return Response(render_error(code, message), status, {**API_VERSION, **headers}, JSON_TYPE)
