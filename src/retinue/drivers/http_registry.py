"""Any OCI registry over HTTP, and its mirrors: runs the flows, waits out the weather, names what is wrong."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import stamina
import stamina.instrumentation
import structlog

from retinue.core.errors import (
    CallTimedOutError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from retinue.drivers.http import (
    HttpClient,
    HttpResponse,
    ResponseTooLargeError,
    TransportError,
    UrlRefusedError,
    trust_authorities,
)
from retinue.protocols.oci import bulk, flows, pushing
from retinue.protocols.oci.artifacts import Artifact, Guard, NewArtifact, Package, render_artifact
from retinue.protocols.oci.auth import Credentials, Login, authorized
from retinue.protocols.oci.bulk import Pulled
from retinue.protocols.oci.catalog import Catalog
from retinue.protocols.oci.exchange import Flow, Request, Response, origin_of
from retinue.protocols.oci.manifest import Descriptor, StoredManifest
from retinue.protocols.oci.reference import Reference, choose_tag
from retinue.protocols.oci.weather import is_weather, parse_retry_after

REGISTRY_TIMEOUT_S = 10.0
"""Default time limit of one request to a registry, repetitions included (DESIGN 7)."""

ATTEMPTS = 5
WAIT_INITIAL_S = 0.1
WAIT_MAX_S = 2.0
WAIT_JITTER_S = 0.1

T = TypeVar("T")

_log = structlog.get_logger("retinue.registry")

# stamina's own line for each wait is a warning that names neither the registry nor what was asked.
stamina.instrumentation.set_on_retry_hooks(())


class CredentialSource(Protocol):
    """Who knows the logins of this machine (``drivers.docker_credentials``)."""

    async def find(self, host: str) -> Credentials | None:
        """Who we are at ``host[:port]``."""
        ...


class HttpRegistry:
    """The registry at ``base_url``; satisfies ``retinue.drivers.registry.CopyableRegistry``.

    ``user:password@`` in the url comes before what ``credentials`` knows, and is never shown.
    ``mirrors`` are base urls that are read, in this order, when the registry itself does not answer or
    fails; what it answers, also that something is not there, is believed. ``ca_file`` names further
    authorities for TLS; ``repositories`` those to look at where there is no catalog.
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
        """Whether its catalog was seen to name anything."""

    @property
    def name(self) -> str:
        """The url, without credentials."""
        return self._servers[0].name

    async def list_repositories(self) -> list[str]:
        return list((await self.read_catalog()).repositories)

    async def read_catalog(self) -> Catalog:
        """All repositories, and what their tags mean where the registry says so: a hub does."""
        found = await self._read(flows.read_catalog)
        self.has_catalog = self.has_catalog or bool(found.repositories)
        return found

    async def list_tags(self, repository: str) -> list[str]:
        return await self._read(lambda: flows.list_tags(repository))

    async def find_digest(self, reference: Reference) -> str | None:
        return await self._read(lambda: flows.find_digest(reference))

    async def pull(self, reference: Reference) -> Artifact:
        found = await self._read(lambda: flows.pull(reference))
        assert found is not None
        return found

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        return await self._read(lambda: flows.pull(reference, known_digest=known_digest))

    async def pull_many(self, references: Sequence[Reference]) -> Pulled:
        """Artifacts by digest in one request, of each repository one; what is left out may be asked again.

        Empty where the registry is none of ours, and where anything but a single artifact is wrong: then
        pulling one by one tells what.
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

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        return await self.push_package(repository, tag, render_artifact(artifact), guard=guard)

    async def push_package(
        self, repository: str, tag: str, package: Package, *, guard: Guard | None = None
    ) -> str:
        if guard is not None:
            guard(await self._held(repository, tag))
        return await self._servers[0].run(pushing.push_package(repository, tag, package))

    async def delete(self, repository: str, target: str) -> None:
        await self._servers[0].run(flows.delete(Reference(repository).at(target)))

    async def _read(self, new_flow: Callable[[], Flow[T]]) -> T:
        """Run a reading flow at the registry, else at the first mirror that answers."""
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
        """What a guard is asked about; what cannot be read may be published over."""
        tags = await self._servers[0].run(flows.list_tags(repository))
        chosen = choose_tag(tags, tag) or choose_tag(tags)
        if chosen is None:
            return None
        try:
            return await self._servers[0].run(flows.pull(Reference(repository, tag=chosen)))
        except (MalformedArtifactError, ReferenceNotFoundError):
            return None


class RegistryServer:
    """One server: a base url, the way in, and patience."""

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
        given, _, self._host = parts.netloc.rpartition("@")
        self.name = parts._replace(netloc=self._host).geturl()
        user, _, password = given.partition(":")
        self._login = Login(
            self.name, credentials=Credentials(unquote(user), unquote(password)) if given else None
        )
        self._credentials = credentials if not given else None
        self._client = client
        self._timeout_s = timeout_s
        self._tls = tls
        self._patient = True
        self._looking = asyncio.Lock()

    async def run(self, flow: Flow[T]) -> T:
        """Carry a flow's requests out one after the other."""
        steps = authorized(flow, self._login)
        try:
            request = next(steps)
            while True:
                response = await self._ask(request)
                if response.status == 401 and self._login.is_own(request.url):
                    await self._find_credentials()
                request = steps.send(response)
        except StopIteration as finished:
            value: T = finished.value
            return value
        finally:
            steps.close()

    async def _find_credentials(self) -> None:
        """Look for a login when one is first asked for, not before: most registries never ask."""
        async with self._looking:
            source, self._credentials = self._credentials, None
            if source is not None:
                self._login.credentials = await source.find(self._host)

    async def _ask(self, request: Request) -> Response:
        """Ask until it answers, or the time is up. Raises RegistryUnreachableError."""
        url = request.url if "://" in request.url else self.name + request.url
        deadline = _now() + self._timeout_s
        try:
            answer = await self._ask_patiently(request, url, deadline)
        except ResponseTooLargeError as error:
            raise MalformedArtifactError(
                request.what or url, f"it is over the limit of {error.limit_bytes:,} bytes"
            ) from error
        except UrlRefusedError as error:
            if self._login.is_own(url):
                raise RegistryUnreachableError(self.name, error.cause) from error
            raise RegistryRefusedError(
                self.name, 307, f"it sends us to {error.origin}: {error.cause}"
            ) from error
        except TransportError as error:
            raise RegistryUnreachableError(self._shown(url), error.cause) from error
        except CallTimedOutError as error:
            cause = f"no whole answer within {self._timeout_s:g} s (registry request)"
            raise RegistryUnreachableError(self._shown(url), cause) from error
        return Response(answer.status, _fold(answer), answer.body, url)

    def _shown(self, url: str) -> str:
        """The server in errors, with the other host where it sent us there."""
        return self.name if self._login.is_own(url) else f"{self.name}, by way of {origin_of(url)},"

    async def _ask_patiently(self, request: Request, url: str, deadline: float) -> HttpResponse:
        """Send a request, again after weather while there is time; the last answer or failure counts.

        A server that did not recover once is not waited for again until it answered: a directory with
        a thousand cards would wait a thousand times.
        """

        def next_try(error: Exception) -> bool | float:
            if isinstance(error, _Weather):
                asked_s = parse_retry_after(_fold(error.answer))
                if asked_s is not None:
                    return asked_s if _now() + asked_s < deadline else False
                return _now() + WAIT_INITIAL_S < deadline
            if isinstance(error, TransportError) and not isinstance(
                error, ResponseTooLargeError | UrlRefusedError
            ):
                return (request.repeatable or not error.sent) and _now() < deadline
            return False

        try:
            answer = await self._try(request, url, deadline)
        except (_Weather, TransportError, CallTimedOutError) as failure:
            first: Exception = failure
        else:
            self._patient = True
            return answer
        # The machinery of repeating costs as much as a request: it is made only for one that failed.
        attempts = stamina.retry_context(
            on=next_try,
            attempts=ATTEMPTS if self._patient else 1,
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
        except _Weather as weather:
            self._patient = False
            return weather.answer
        except (TransportError, CallTimedOutError):
            self._patient = False
            raise
        self._patient = True
        return answer

    async def _try(self, request: Request, url: str, deadline: float) -> HttpResponse:
        answer = await self._send(request, url, max(0.001, deadline - _now()))
        if is_weather(answer.status, repeatable=request.repeatable):
            raise _Weather(url, answer)
        return answer

    async def _send(self, request: Request, url: str, timeout_s: float) -> HttpResponse:
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


class _Weather(Exception):  # noqa: N818 - never seen outside this file
    """An answer that is likely to be another one in a moment."""

    def __init__(self, url: str, answer: HttpResponse) -> None:
        super().__init__(f"{origin_of(url)} answered {answer.status}")
        self.answer = answer


def _fold(answer: HttpResponse) -> dict[str, str]:
    """The headers by lower-case name; those that came several times are joined (RFC 9110, 5.3)."""
    folded: dict[str, str] = {}
    for key, value in answer.headers.items():
        name = key.lower()
        folded[name] = f"{folded[name]}, {value}" if name in folded else value
    return folded


def _now() -> float:
    return asyncio.get_running_loop().time()
