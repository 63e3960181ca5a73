"""A token server as docker-registry's ``auth: token`` wants one: knows users, signs what they may do."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.registry.certificates import Authority, make_authority

ISSUER = "retinue-tests"
SERVICE = "registry-under-test"
USER, PASSWORD, IDENTITY_TOKEN = "hub", "s3cret", "an-identity"


@dataclass
class TokenServer:
    """Whoever knows the password may do all; anybody may pull. ``shows_catalog`` False is as at ghcr.io."""

    authority: Authority = field(default_factory=lambda: make_authority(ISSUER))
    expires_in_s: int = 300
    shows_catalog: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def grant(self, scope: str, known: bool) -> list[dict[str, Any]]:
        """The part of a scope that is allowed, in the form of the token's ``access``."""
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        wanted = set(actions.split(","))
        if kind == "registry":
            allowed = wanted if known and self.shows_catalog else set()
        else:
            allowed = wanted if known else wanted & {"pull"}
        return [{"type": kind, "name": name, "actions": sorted(allowed)}] if allowed else []

    def sign(self, access: list[dict[str, Any]], subject: str) -> str:
        """A JWT (ES256) whose header carries the certificate."""
        now = int(time.time())
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(self.authority.der).decode()]}
        claims = {
            "iss": ISSUER,
            "sub": subject,
            "aud": SERVICE,
            "iat": now,
            "nbf": now - 10,
            "exp": now + self.expires_in_s,
            "jti": secrets.token_hex(8),
            "access": access,
        }
        text = ".".join(_pack(json.dumps(part).encode()) for part in (header, claims))
        r, s = decode_dss_signature(self.authority.key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_pack(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


@contextmanager
def token_server(**options: Any) -> Iterator[TokenServer]:
    """Run one on a port of its own, in a thread."""
    server = TokenServer(**options)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            given = self.headers.get("Authorization")
            expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            self._answer(query, given == expected, refused=given is not None and given != expected)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {key: values[0] for key, values in parse_qs(body).items()}
            known = (
                form.get("grant_type") == "refresh_token" and form.pop("refresh_token", "") == IDENTITY_TOKEN
            )
            self._answer(form, known, refused=not known)

        def _answer(self, asked: dict[str, str], known: bool, *, refused: bool) -> None:
            server.asked.append({**asked, "known": str(known)})
            reply: dict[str, Any]
            if refused or asked.get("service") != SERVICE:
                status, reply = 401, {"errors": [{"code": "UNAUTHORIZED", "message": "wrong password"}]}
            else:
                access = server.grant(asked.get("scope", ""), known)
                token = server.sign(access, USER if known else "")
                status, reply = 200, {"token": token, "expires_in": server.expires_in_s}
            body = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,), name="token server")
        thread.start()
        server.url = f"http://127.0.0.1:{listener.server_address[1]}/token"
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


def _pack(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
