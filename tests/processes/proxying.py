"""A reverse proxy of our own in front of real processes: path prefixes, TLS, headers about the client."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

START_S = 90.0
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", "content-length", "host"}
)


@dataclass
class Proxy:
    """Requests below ``prefix`` go to ``upstream``, which may be set later.

    With ``strips`` the upstream sees the path without the prefix; with ``keeps_host`` it sees the Host that
    the client sent, else its own address, as with nginx by default; ``tells`` are further headers.
    """

    prefix: str = ""
    strips: bool = True
    keeps_host: bool = False
    tells: Mapping[str, str] = field(default_factory=dict)
    upstream: str = ""
    url: str = ""
    seen: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path_qs
        if self.prefix and not path.startswith(f"{self.prefix}/"):
            return web.Response(status=418, text="outside of the prefix")
        self.seen.append(path)
        if self.strips:
            path = path[len(self.prefix) :]
        headers = {name: text for name, text in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        if self.keeps_host:
            headers["Host"] = request.host
        told = {"host": request.host, "scheme": request.scheme}
        headers |= {name: text.format(**told) for name, text in self.tells.items()}
        body = await request.read()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method, self.upstream + path, headers=headers, data=body, allow_redirects=False
            ) as answer,
        ):
            passed = {name: text for name, text in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            if answer.content_type == "text/event-stream":
                return await _pass_on(request, answer, passed)
            return web.Response(status=answer.status, headers=passed, body=await answer.read())


async def _pass_on(
    request: web.Request, answer: aiohttp.ClientResponse, headers: Mapping[str, str]
) -> web.StreamResponse:
    """A stream, each part as it comes."""
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    async for part in answer.content.iter_any():
        await response.write(part)
    return response


@contextmanager
def proxying(proxy: Proxy, tls: tuple[Path, Path] | None = None) -> Iterator[Proxy]:
    """Run the proxy in a thread of its own; sets its ``url``, with the prefix."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        context = None
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*tls)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        scheme = "http" if tls is None else "https"
        proxy.url = f"{scheme}://localhost:{port}{proxy.prefix}"
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(START_S), "the proxy did not start"
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(START_S)
        loop.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "proxy.pem", folder / "proxy.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files
