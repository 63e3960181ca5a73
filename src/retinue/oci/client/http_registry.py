"""Runs registry flows over HTTP, with mirrors, retries and error mapping."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import structlog
from multidict import CIMultiDict, CIMultiDictProxy

from retinue.core.durations import render_duration
from retinue.core.errors import (
    CallTimedOutError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from retinue.mesh.time_limit import TimeLimit
from retinue.oci.codec import bulk, changes, flows, referrers
from retinue.oci.codec.artifacts import Artifact, Guard, NewArtifact, Package, render_artifact
from retinue.oci.codec.auth import RegistryCredentials, RegistryLogin, authorized
from retinue.oci.codec.bulk import Pulled
from retinue.oci.codec.catalog import Catalog
from retinue.oci.codec.exchange import BlobSink, Flow, RegistryRequest, Response, origin_of
from retinue.oci.codec.manifest import Descriptor, StoredManifest
from retinue.oci.codec.reference import Reference, choose_tag
from retinue.oci.codec.wire import is_transient, parse_retry_after
from retinue.web.http_client import HttpClient, trust_authorities
from retinue.web.transport import HttpResponse, ResponseTooLargeError, TransportError, UrlRefusedError

REGISTRY_TIMEOUT_S = 10.0
"""Default time limit of one request to a registry, including retries."""

ATTEMPTS = 5
WAIT_INITIAL_S = 0.1
WAIT_MAX_S = 2.0
WAIT_JITTER_S = 0.1
MAX_ERROR_BYTES = 64 * 1024

T = TypeVar("T")

_log = structlog.get_logger("retinue.registry")


class CredentialSource(Protocol):
    """Finds registry credentials, for example `retinue.oci.client.credentials.DockerCredentials`."""

    async def find(self, host: str) -> RegistryCredentials | None:
        """The credentials for ``host[:port]``; None when there is no login."""
        ...


class HttpRegistry:
    """The registry at ``base_url``; implements `retinue.oci.registry.CopyableRegistry`.

    ``user:password@`` in the url takes precedence over ``credentials`` and is never shown. ``mirrors`` are
    base urls to read from, in order, when the registry does not answer or fails with a server error; other
    replies, such as 404, are final. ``ca_file`` adds certificate authorities; ``repositories`` are read when
    the registry has no catalog.
    """

    def __init__(
        self,
        base_url: str,
        client: HttpClient,
        *,
        timeout_s: float = REGISTRY_TIMEOUT_S,
        mirrors: Sequence[str] = (),
        ca_file: Path | None = None,
        credentials: CredentialSource | None = None,
        repositories: Sequence[str] = (),
    ) -> None:
        tls = trust_authorities(ca_file) if ca_file is not None else None
        self._servers = [
            RegistryServer(url, client, timeout_s=timeout_s, tls=tls, credentials=credentials)
            for url in (base_url, *mirrors)
        ]
        self.repositories = tuple(repositories)
        self.has_catalog = False
        """Whether its catalog has listed any repository."""

    @property
    def name(self) -> str:
        """The url, without credentials."""
        return self._servers[0].name

    async def list_repositories(self) -> list[str]:
        return list((await self.read_catalog()).repositories)

    async def read_catalog(self) -> Catalog:
        """All repositories, with the digests of their tags if the registry reports them, as a hub does."""
        catalog = await self._read(flows.read_catalog)
        self.has_catalog = self.has_catalog or bool(catalog.repositories)
        return catalog

    async def list_tags(self, repository: str) -> list[str]:
        return await self._read(lambda: flows.list_tags(repository))

    async def find_digest(self, reference: Reference) -> str | None:
        return await self._read(lambda: flows.find_digest(reference))

    async def pull(self, reference: Reference) -> Artifact:
        artifact = await self._read(lambda: flows.pull(reference))
        assert artifact is not None
        return artifact

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        return await self._read(lambda: flows.pull(reference, known_digest=known_digest))

    def generation(self) -> None:
        """None: whether a remote registry changed takes a request to find out."""

    async def wait_for_change(self, after: str) -> str | None:
        """The stamp of the registry once it is not ``after``, or after some seconds; None if it has none.

        Only hubs have stamps. Mirrors are not asked. Raises RegistryError.
        """
        return await self.run(changes.wait_for_change(after))

    async def pull_many(self, references: Sequence[Reference]) -> Pulled:
        """Pull artifacts by digest in one request, one per repository; those left out may be requested again.

        Empty when the registry does not support this, or when the whole request fails: pulling them one by
        one then shows the error.
        """
        try:
            return await self._read(lambda: bulk.pull_many(references))
        except RegistryError as error:
            _log.info("registry asked one by one", registry=self.name, error=error.message)
            return {}

    async def pull_manifest(self, reference: Reference) -> StoredManifest:
        return await self._read(lambda: flows.pull_manifest(reference))

    async def pull_blob(self, repository: str, blob: Descriptor) -> bytes:
        where = f"{repository}@{blob.digest}"
        return await self._read(lambda: flows.pull_blob(repository, blob, where=where))

    async def copy_blob(self, repository: str, blob: Descriptor, sink: BlobSink) -> None:
        where = f"{repository}@{blob.digest}"
        await self._read(lambda: flows.copy_blob(repository, blob, sink, where=where))

    async def list_referrers(
        self, repository: str, digest: str, artifact_type: str | None = None
    ) -> list[Descriptor]:
        """The artifacts whose subject is this digest; [] where the registry does not list them."""
        return await self._read(lambda: referrers.list_referrers(repository, digest, artifact_type))

    async def push_referrer(
        self, repository: str, package: Package, *, is_replaced: referrers.IsReplaced = lambda _row: False
    ) -> None:
        """Store an artifact that names its subject, so that `list_referrers` lists it.

        Raises RegistryRefusedError.
        """
        await self._servers[0].run(referrers.push_referrer(repository, package, is_replaced))

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        return await self.push_package(repository, tag, render_artifact(artifact), guard=guard)

    async def push_package(
        self, repository: str, tag: str, package: Package, *, guard: Guard | None = None
    ) -> str:
        if guard is not None:
            guard(await self._held(repository, tag))
        return await self._servers[0].run(flows.push_package(repository, tag, package))

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow at the registry itself, and at no mirror."""
        return await self._servers[0].run(flow)

    async def delete(self, repository: str, target: str) -> None:
        await self._servers[0].run(flows.delete(Reference(repository).at(target)))

    async def _read(self, new_flow: Callable[[], Flow[T]]) -> T:
        """Run a read-only flow at the registry, else at the first mirror that answers."""
        first: RegistryUnreachableError | RegistryRefusedError | None = None
        for server in self._servers:
            try:
                return await server.run(new_flow())
            except (RegistryUnreachableError, RegistryRefusedError) as error:
                if isinstance(error, RegistryRefusedError) and error.status < 500 and error.status != 429:
                    raise
                first = first or error
        assert first is not None
        raise first

    async def _held(self, repository: str, tag: str) -> Artifact | None:
        """The artifact to pass to a guard; None for an unreadable one, which may be replaced."""
        tags = await self._servers[0].run(flows.list_tags(repository))
        chosen = choose_tag(tags, tag) or choose_tag(tags)
        if chosen is None:
            return None
        try:
            return await self._servers[0].run(flows.pull(Reference(repository, tag=chosen)))
        except (MalformedArtifactError, ReferenceNotFoundError):
            return None


class RegistryServer:
    """One server of a registry: base url, authentication, retries."""

    def __init__(
        self,
        url: str,
        client: HttpClient,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None,
        credentials: CredentialSource | None,
    ) -> None:
        parts = urlsplit(url.rstrip("/"))
        user_info, _, self._host = parts.netloc.rpartition("@")
        self.name = parts._replace(netloc=self._host).geturl()
        user, _, password = user_info.partition(":")
        self._login = RegistryLogin(
            self.name,
            credentials=RegistryCredentials(unquote(user), unquote(password)) if user_info else None,
        )
        self._credentials = credentials if not user_info else None
        self._client = client
        self._timeout_s = timeout_s
        self._tls = tls
        self._retries = True
        self._login_lock = asyncio.Lock()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow: send its requests one after the other, return its result."""
        steps = authorized(flow, self._login)
        try:
            request = next(steps)
            while True:
                response = await self._exchange(request)
                if response.status == 401 and self._login.is_own(request.url):
                    await self._find_credentials()
                request = steps.send(response)
        except StopIteration as finished:
            value: T = finished.value
            return value
        finally:
            steps.close()

    async def _find_credentials(self) -> None:
        """Look up credentials at the first challenge: most registries never send one."""
        async with self._login_lock:
            source, self._credentials = self._credentials, None
            if source is not None:
                self._login.credentials = await source.find(self._host)

    async def _exchange(self, request: RegistryRequest) -> Response:
        """Send one request with retries, until the time limit. Raises RegistryUnreachableError."""
        url = request.url if "://" in request.url else self.name + request.url
        deadline = _now() + self._timeout_s
        try:
            answer = await self._send_with_retries(request, url, deadline)
        except ResponseTooLargeError as error:
            raise MalformedArtifactError(
                request.what or url, f"it exceeds the limit of {error.limit_bytes:,} bytes"
            ) from error
        except UrlRefusedError as error:
            if self._login.is_own(url):
                raise RegistryUnreachableError(self.name, error.cause) from error
            raise RegistryRefusedError(
                self.name, 307, f"it redirects to {error.origin}: {error.cause}"
            ) from error
        except TransportError as error:
            raise RegistryUnreachableError(self._shown(url), error.cause) from error
        except CallTimedOutError as error:
            cause = f"no complete response within {render_duration(self._timeout_s)} (registry request)"
            raise RegistryUnreachableError(self._shown(url), cause) from error
        return Response(answer.status, _fold(answer), answer.body, url)

    def _shown(self, url: str) -> str:
        """The server as shown in errors, with the host that it redirected to."""
        return self.name if self._login.is_own(url) else f"{self.name}, redirecting to {origin_of(url)},"

    async def _send_with_retries(self, request: RegistryRequest, url: str, deadline: float) -> HttpResponse:
        """Send a request, repeating it after transient errors until ``deadline``; returns the last response.

        After retries have failed once, they are suspended until the server answers again: otherwise reading a
        thousand cards would wait a thousand times.
        """

        def may_retry(error: Exception) -> bool | float:
            if isinstance(error, _TransientError):
                wait_s = parse_retry_after(_fold(error.answer))
                if wait_s is not None:
                    return wait_s if _now() + wait_s < deadline else False
                return _now() + WAIT_INITIAL_S < deadline
            if isinstance(error, TransportError) and not isinstance(
                error, ResponseTooLargeError | UrlRefusedError
            ):
                return (request.repeatable or not error.sent) and _now() < deadline
            return False

        try:
            answer = await self._try(request, url, deadline)
        except (_TransientError, TransportError, CallTimedOutError) as failure:
            first: Exception = failure
        else:
            self._retries = True
            return answer
        # Setting up retries costs as much as a request, so it happens only after a failure.
        import stamina
        import stamina.instrumentation

        # stamina logs each retry as a warning without naming the registry and the request.
        stamina.instrumentation.set_on_retry_hooks(())
        attempts = stamina.retry_context(
            on=may_retry,
            attempts=ATTEMPTS if self._retries else 1,
            timeout=None,
            wait_initial=WAIT_INITIAL_S,
            wait_max=WAIT_MAX_S,
            wait_jitter=WAIT_JITTER_S,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    if attempt.num == 1:
                        raise first
                    _log.info(
                        "registry asked again", registry=self.name, what=request.what, attempt=attempt.num
                    )
                    answer = await self._try(request, url, deadline)
        except _TransientError as transient:
            self._retries = False
            return transient.answer
        except (TransportError, CallTimedOutError):
            self._retries = False
            raise
        self._retries = True
        return answer

    async def _try(self, request: RegistryRequest, url: str, deadline: float) -> HttpResponse:
        answer = await self._send(request, url, max(0.001, deadline - _now()))
        if is_transient(answer.status, repeatable=request.repeatable):
            raise _TransientError(url, answer)
        return answer

    async def _stream(
        self, request: RegistryRequest, sink: BlobSink, url: str, timeout_s: float
    ) -> HttpResponse:
        """Send a request whose response goes to a sink; the time limit is that of each piece of it."""
        what = request.what or url
        body = b""
        try:
            with TimeLimit(timeout_s) as limit:
                opening = self._client.stream(request.method, url, headers=request.headers, tls=self._tls)
                async with opening as stream:
                    if stream.status == 200:
                        sink.begin()
                        while piece := await stream.read_some():
                            sink.add(piece)
                            limit.reschedule(_now() + self._timeout_s)
                    else:
                        body = await stream.read(MAX_ERROR_BYTES)
                    return HttpResponse(stream.status, CIMultiDictProxy(CIMultiDict(stream.headers)), body)
        except TimeoutError:
            raise CallTimedOutError(
                what, self._timeout_s, layer="registry request", setting="timeouts.registry_s"
            ) from None

    async def _send(self, request: RegistryRequest, url: str, timeout_s: float) -> HttpResponse:
        if request.sink is not None:
            return await self._stream(request, request.sink, url, timeout_s)
        return await self._client.request(
            request.method,
            url,
            headers=request.headers,
            body=request.body,
            timeout_s=timeout_s,
            max_response_bytes=request.max_response_bytes,
            layer="registry request",
            setting="timeouts.registry_s",
            tls=self._tls,
        )


class _TransientError(Exception):
    """A response with a transient error status."""

    def __init__(self, url: str, answer: HttpResponse) -> None:
        super().__init__(f"{origin_of(url)} answered {answer.status}")
        self.answer = answer


def _fold(answer: HttpResponse) -> dict[str, str]:
    """Headers by lower-case name; repeated headers are joined (RFC 9110, section 5.3)."""
    folded: dict[str, str] = {}
    for key, value in answer.headers.items():
        name = key.lower()
        folded[name] = f"{folded[name]}, {value}" if name in folded else value
    return folded


def _now() -> float:
    return asyncio.get_running_loop().time()
