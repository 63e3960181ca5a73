"""Flows of files in pieces: uploads by chunks, reads by range (OCI distribution spec 1.1)."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from retinue.core.errors import RegistryRefusedError
from retinue.oci.codec.exchange import REDIRECTS, Flow, RegistryRequest, expect, read_location
from retinue.oci.codec.flows import MAX_REDIRECTS, next_host
from retinue.oci.codec.manifest import OCTETS_TYPE
from retinue.oci.codec.reference import check_repository

_SMALL_BYTES = 4096
"""Minimum response limit, so that an error body fits."""

_WHAT = "an artifact"


def begin_upload(repository: str) -> Flow[str]:
    """Begin an upload; returns where its next chunk goes."""
    path = f"/v2/{check_repository(repository)}/blobs/uploads/"
    response = yield RegistryRequest("POST", path, body=b"", what=_WHAT)
    return read_location(expect(response, 202))


def send_chunk(upload: str, start: int, chunk: bytes) -> Flow[str]:
    """Send the chunk that begins at byte ``start``; returns where the next one goes."""
    headers = {"content-type": OCTETS_TYPE, "content-range": f"{start}-{start + len(chunk) - 1}"}
    response = yield RegistryRequest("PATCH", upload, headers, chunk, what=_WHAT)
    return read_location(expect(response, 202))


def end_upload(upload: str, digest: str) -> Flow[None]:
    """Complete an upload as the blob of a digest, which the registry verifies."""
    mark = "&" if urlsplit(upload).query else "?"
    url = f"{upload}{mark}digest={quote(digest, safe='')}"
    response = yield RegistryRequest("PUT", url, {"content-type": OCTETS_TYPE}, b"", what=_WHAT)
    expect(response, 201)


def cancel_upload(upload: str) -> Flow[None]:
    """Cancel an upload; a registry that does not support it removes it later."""
    yield RegistryRequest("DELETE", upload, what=_WHAT)


def find_size(repository: str, digest: str) -> Flow[int | None]:
    """The size of a blob in bytes; None if the registry does not have it."""
    url = f"/v2/{check_repository(repository)}/blobs/{digest}"
    response = yield RegistryRequest("HEAD", url, what=_WHAT)
    for _ in range(MAX_REDIRECTS):
        if response.status not in REDIRECTS:
            break
        response = yield RegistryRequest("HEAD", next_host(response), what=_WHAT)
    if response.status == 404:
        return None
    length = expect(response, 200).headers.get("content-length", "")
    if not length.isdecimal():
        raise RegistryRefusedError(response.registry, response.status, "it does not tell the size of a blob")
    return int(length)


def read_range(repository: str, digest: str, start: int, end: int) -> Flow[bytes | None]:
    """The bytes of a blob from ``start`` up to ``end``; None if the registry does not have it."""
    headers = {"range": f"bytes={start}-{end - 1}"}
    cap = max(end - start, _SMALL_BYTES)
    url = f"/v2/{check_repository(repository)}/blobs/{digest}"
    response = yield RegistryRequest("GET", url, headers, max_response_bytes=cap, what=_WHAT)
    for _ in range(MAX_REDIRECTS):
        if response.status not in REDIRECTS:
            break
        target = next_host(response)
        response = yield RegistryRequest("GET", target, headers, max_response_bytes=cap, what=_WHAT)
    if response.status == 404:
        return None
    if response.status == 200 and start == 0:
        return response.body[:end]  # all of a blob that is no larger
    if response.status == 200:
        raise RegistryRefusedError(response.registry, 200, "it does not send parts of a blob")
    return expect(response, 206).body
