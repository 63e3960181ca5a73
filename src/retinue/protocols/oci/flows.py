"""Pure: the exchanges with a registry as generators: each yields Requests and is sent Responses.

A flow never touches a socket, so it is tested by hand-fed responses, and authentication can later be
one more flow around it that answers a 401 by itself. The value of a flow is its ``return``.
Distribution spec 1.1; FACTS 3, B1 has what docker-registry does beside it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin, urlsplit

import orjson

from retinue.core.errors import (
    DigestMismatchError,
    InvalidReferenceError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryRefusedError,
)
from retinue.protocols.oci.artifacts import (
    MAX_CONTENT_BYTES,
    Artifact,
    Envelope,
    NewArtifact,
    parse_envelope,
    render_artifact,
)
from retinue.protocols.oci.manifest import (
    DOCKER_MANIFEST_TYPE,
    MANIFEST_TYPE,
    MAX_MANIFEST_BYTES,
    OCTETS_TYPE,
)
from retinue.protocols.oci.reference import Reference, check_repository, choose_tag, digest_of, is_digest
from retinue.protocols.oci.wire import PAGE_SIZE_LIMIT, parse_error, parse_next_link

MAX_PAGES = 1000
MAX_REDIRECTS = 3
_ACCEPT = {"accept": f"{MANIFEST_TYPE}, {DOCKER_MANIFEST_TYPE}"}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; ``url`` is a path below the registry's base, or absolute."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    max_response_bytes: int = MAX_MANIFEST_BYTES


@dataclass(frozen=True, slots=True)
class Response:
    """Its answer; header names in lower case, ``url`` the absolute one that was asked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    @property
    def registry(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def list_repositories() -> Generator[Request, Response, list[str]]:
    """All repositories of ``_catalog``, page by page, in lexical order (P-02)."""
    found: set[str] = set()
    url: str | None = f"/v2/_catalog?n={PAGE_SIZE_LIMIT}"
    seen: set[str] = set()
    while url is not None and url not in seen and len(seen) < MAX_PAGES:
        seen.add(url)
        response = yield Request("GET", url, max_response_bytes=MAX_CONTENT_BYTES)
        if response.status == 400 and len(seen) == 1:
            # A registry that serves smaller pages than ours says so by 400: let it choose the size.
            url = "/v2/_catalog"
            continue
        found.update(_names(response, "repositories"))
        url = _next_page(response)
    return sorted(found)


def list_tags(repository: str) -> Generator[Request, Response, list[str]]:
    """All tags in lexical order; none for a repository that is unknown or was emptied (``tags: null``)."""
    tags, _ = yield from _list_tags(repository)
    return tags


def _list_tags(repository: str) -> Generator[Request, Response, tuple[list[str], str]]:
    """The tags, and the registry that was asked."""
    found: set[str] = set()
    registry = ""
    url: str | None = f"/v2/{check_repository(repository)}/tags/list"
    seen: set[str] = set()
    while url is not None and url not in seen and len(seen) < MAX_PAGES:
        seen.add(url)
        response = yield Request("GET", url)
        registry = response.registry
        if response.status == 404:
            break
        found.update(_names(response, "tags"))
        url = _next_page(response)
    return sorted(found), registry


def find_digest(reference: Reference) -> Generator[Request, Response, str | None]:
    """The digest that a reference means now, without its content; None when there is nothing."""
    try:
        chosen = yield from _choose(reference)
    except ReferenceNotFoundError:
        return None
    response = yield Request("HEAD", _manifest_path(chosen), _ACCEPT)
    if response.status == 404:
        return None
    _expect(response, 200)
    digest = response.headers.get("docker-content-digest", "")
    if is_digest(digest):
        return digest
    # The header is optional: a registry without it is asked for the manifest itself.
    response = yield Request("GET", _manifest_path(chosen), _ACCEPT)
    return None if response.status == 404 else digest_of(_expect(response, 200).body)


def pull(
    reference: Reference, *, known_digest: str | None = None
) -> Generator[Request, Response, Artifact | None]:
    """Pull an artifact: the manifest, then its inline content or the blob by digest, all verified (doubt 6).

    None when the reference still means ``known_digest``.
    Raises ReferenceNotFoundError, DigestMismatchError, MalformedArtifactError, RegistryRefusedError.
    """
    chosen = yield from _choose(reference)
    headers = dict(_ACCEPT)
    if known_digest is not None:
        headers["if-none-match"] = f'"{known_digest}"'
    response = yield Request("GET", _manifest_path(chosen), headers)
    if response.status == 304 and known_digest is not None:
        return None
    if response.status == 404:
        raise ReferenceNotFoundError(response.registry, str(chosen))
    raw = _expect(response, 200).body
    if known_digest is not None and digest_of(raw) == known_digest:
        return None
    envelope = parse_envelope(raw, where=str(chosen), tag=chosen.tag, wanted_digest=chosen.digest)
    content = envelope.inline_content()
    if content is None:
        content = yield from _pull_blob(chosen, envelope)
    return envelope.open(content)


def push(repository: str, tag: str, artifact: NewArtifact) -> Generator[Request, Response, str]:
    """Push an artifact: each blob that is missing (POST, then one PUT), then the manifest. Gives its digest.

    Raises RegistryRefusedError, DigestMismatchError when the registry stored something else.
    """
    reference = Reference(repository, tag=tag)
    package = render_artifact(artifact)
    for digest, content in package.blobs.items():
        yield from _push_blob(repository, digest, content)
    media_type = package.manifest.media_type or MANIFEST_TYPE
    response = yield Request(
        "PUT", _manifest_path(reference), {"content-type": media_type}, package.manifest_bytes
    )
    stored = _expect(response, 201).headers.get("docker-content-digest", package.digest)
    if stored != package.digest:
        raise DigestMismatchError(str(reference), package.digest, stored)
    return package.digest


def delete(reference: Reference) -> Generator[Request, Response, None]:
    """Delete a tag or digest.

    docker-registry deletes by digest only: there the manifest goes, with every tag that it has.
    Raises ReferenceNotFoundError, RegistryRefusedError (also where deletion is switched off).
    """
    if reference.target is None:
        raise InvalidReferenceError(str(reference), "to delete, name a tag or a digest")
    response = yield Request("DELETE", _manifest_path(reference))
    if response.status in {400, 405} and reference.digest is None:
        digest = yield from find_digest(reference)
        if digest is None:
            raise ReferenceNotFoundError(response.registry, str(reference))
        response = yield Request("DELETE", _manifest_path(reference.at(digest)))
    if response.status == 404:
        raise ReferenceNotFoundError(response.registry, str(reference))
    _expect(response, 200, 202, 204)


def _choose(reference: Reference) -> Generator[Request, Response, Reference]:
    """The reference with its best tag where it names none. Raises ReferenceNotFoundError."""
    if reference.target is not None:
        return reference
    tags, registry = yield from _list_tags(reference.repository)
    tag = choose_tag(tags)
    if tag is None:
        raise ReferenceNotFoundError(registry, str(reference))
    return reference.at(tag)


def _pull_blob(reference: Reference, envelope: Envelope) -> Generator[Request, Response, bytes]:
    digest = envelope.layer.digest
    # The manifest's word on the size is the cap: a registry that sends more is cut off.
    cap = max(envelope.layer.size_bytes, 4096)
    response = yield Request("GET", f"/v2/{reference.repository}/blobs/{digest}", max_response_bytes=cap)
    for _ in range(MAX_REDIRECTS):
        if response.status not in _REDIRECTS:
            break
        # Large registries keep blobs elsewhere; what comes from there must hash to the digest all the same.
        response = yield Request("GET", _location(response), max_response_bytes=cap)
    if response.status == 404:
        raise MalformedArtifactError(str(reference), f"its content {digest} is missing")
    return _expect(response, 200).body


def _push_blob(repository: str, digest: str, content: bytes) -> Generator[Request, Response, None]:
    response = yield Request("HEAD", f"/v2/{repository}/blobs/{digest}")
    if response.status == 200:
        return
    response = yield Request("POST", f"/v2/{repository}/blobs/uploads/", body=b"")
    upload = _location(_expect(response, 202))
    mark = "&" if urlsplit(upload).query else "?"
    response = yield Request(
        "PUT", f"{upload}{mark}digest={quote(digest, safe='')}", {"content-type": OCTETS_TYPE}, content
    )
    _expect(response, 201)


def _manifest_path(reference: Reference) -> str:
    return f"/v2/{reference.repository}/manifests/{reference.target}"


def _location(response: Response) -> str:
    """The absolute url of a Location header, which may be relative to what was asked."""
    location = response.headers.get("location")
    if not location:
        raise RegistryRefusedError(response.registry, response.status, "no Location in its answer")
    return _join(response, location)


def _next_page(response: Response) -> str | None:
    """The next page, always at the registry that was asked, whatever host its link names."""
    link = parse_next_link(response.headers.get("link"))
    if link is None:
        return None
    there = urlsplit(_join(response, link))
    return urlsplit(response.url)._replace(path=there.path, query=there.query).geturl()


def _join(response: Response, target: str) -> str:
    try:
        return urljoin(response.url, target)
    except ValueError:
        raise RegistryRefusedError(
            response.registry, response.status, f"it points to {target[:80]!r}, which is no url"
        ) from None


def _names(response: Response, key: str) -> list[str]:
    try:
        value = orjson.loads(_expect(response, 200).body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RegistryRefusedError(response.registry, response.status, f"no JSON list of {key}")
    names = value.get(key) or []
    if not isinstance(names, list):
        raise RegistryRefusedError(response.registry, response.status, f"no JSON list of {key}")
    return [name for name in names if isinstance(name, str)]


def _expect(response: Response, *statuses: int) -> Response:
    if response.status not in statuses:
        code, message = parse_error(response.body)
        detail = ": ".join(part for part in (code, message) if part) or "no reason given"
        raise RegistryRefusedError(response.registry, response.status, detail)
    return response
