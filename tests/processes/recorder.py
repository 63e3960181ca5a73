"""A server of a stranger that keeps every byte that it is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAIT_S = 60.0


class Recorder(ThreadingHTTPServer):
    """Answers everything with ``status``, ``headers`` and ``body``; ``requests`` are head and body as sent.

    ``answer`` gives other ones for a method and a path, or None.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.headers: Mapping[str, str] = {}
        self.body = b"{}"
        self.answer: Callable[[str, str], tuple[int, Mapping[str, str], bytes] | None] = lambda *_: None
        self.requests: list[bytes] = []
        self.connections = 0
        self._news = threading.Condition()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def received(self) -> bytes:
        """All that came."""
        with self._news:
            return b"\n".join(self.requests)

    def keep(self, request: bytes) -> None:
        with self._news:
            self.requests.append(request)
            self._news.notify_all()

    def wait_for(self, text: bytes) -> None:
        """Wait until something came that holds the text."""
        with self._news:
            came = self._news.wait_for(lambda: any(text in one for one in self.requests), WAIT_S)
        assert came, f"no {text!r} in {self.requests}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder
    timeout = 30

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.keep(self.raw_requestline + self.headers.as_bytes() + body)
        given = self.server.answer(self.command, self.path)
        status, headers, text = given or (self.server.status, self.server.headers, self.server.body)
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        return


@contextmanager
def recorder() -> Iterator[Recorder]:
    """A recorder that runs while inside."""
    server = Recorder()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(WAIT_S)
        server.server_close()
