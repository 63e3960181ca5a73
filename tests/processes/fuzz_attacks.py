"""Requests made by chance from valid ones: heads, bodies and paths of every endpoint, as bytes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.processes.fuzz_targets import FORM, ODD_PATHS, Target, encode_form

KEPT = "/v2/agents/echo/"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "PRI")
HOSTS = (
    "127.0.0.1",
    "localhost",
    "[::1]",
    "[::1].evil.example",
    "evil.example",
    "",
    "127.0.0.1:99999",
    "\xff",
)
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**53, 2**64, 1e308, "", "x", "\x00", "\u202e", "a" * 5000, "../..", "http://[", [],
    {}, [[]] * 50, {"": ""}, {"$ref": "#"}, "${{ 1 }}", {"a": {"b": [1, None, "c"]}},
)  # fmt: skip
RAW_BODIES = (
    b"", b"{", b"[" * 1000, b'{"a":' * 300, b"\xff\xfe", b"null", b"[]", b"[1,2]", b"NaN", b"1e999",
    b'"\\ud800"',
    b'{"jsonrpc":"2.0","method":"echo","params":{"text":"\\ud800"},"id":1}', b"\x00" * 100, b"-" * 10_000,
    b'{"jsonrpc":"2.0","method":"echo","id":' + b"9" * 400 + b"}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attack:
    """The bytes of one request, in pieces; a half-open one never ends.

    ``is_whole``: a server can tell where it ends. ``statuses`` are those that its endpoint has by its
    specification.
    """

    pieces: tuple[bytes, ...]
    is_half_open: bool = False
    is_whole: bool = True
    statuses: tuple[int, ...] = ()

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def make_attack(
    chance: random.Random, token: str, targets: Sequence[Target], known: Mapping[str, str]
) -> Attack:
    """One request: a valid one with some of its parts replaced."""
    target = chance.choice(targets)
    method, path, body = _aim(chance, target)
    headers = {"Host": "127.0.0.1", "Content-Type": target.media_type}
    headers["Accept"] = "application/json, text/event-stream"
    if chance.random() < 0.6:
        headers["Authorization"] = f"Bearer {token}"
    for line in target.headers if chance.random() < 0.9 else ():
        name, _, value = line.partition(": ")
        headers[name] = value if chance.random() < 0.95 else chance.choice(("1", "\xe9", "", "a" * 300))
    lines = [fill(f"{name}: {value}", known) for name, value in headers.items()]
    head = fill(f"{method} {path} HTTP/1.1", known)
    body = fill_bytes(body, known)
    framing = [f"Content-Length: {len(body)}"]
    is_whole = True
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        change = chance.choice(_HEAD_CHANGES)
        is_whole = is_whole and change is not _framing
        head, lines, framing, body = change(chance, head, lines, framing, body)
    data = "\r\n".join([head, *lines, *framing, "", ""]).encode("latin-1", "replace") + body
    statuses = target.statuses
    if chance.random() < 0.05:
        return Attack((data[: chance.randrange(len(data))],), is_half_open=True)
    if chance.random() < 0.2:
        at = chance.randrange(len(data))
        return Attack((data[:at], data[at:]), is_whole=is_whole, statuses=statuses)
    return Attack((data,), is_whole=is_whole, statuses=statuses)


def fill(text: str, known: Mapping[str, str]) -> str:
    """Put what was learned where a name of it stands."""
    return _NAMES.sub(lambda found: known.get(found[1], found[0]), text)


def fill_bytes(data: bytes, known: Mapping[str, str]) -> bytes:
    """The same in a body; a text in a JSON value keeps its quotes."""
    return _NAMES_IN_BYTES.sub(lambda found: known.get(found[1].decode(), found[0].decode()).encode(), data)


_NAMES = re.compile(r"@([a-z_]+)@")
_NAMES_IN_BYTES = re.compile(rb"@([a-z_]+)@")


def encode(target: Target, body: Any) -> bytes:
    """A body of a target as it is sent."""
    if isinstance(body, str):
        return body.encode()
    if target.media_type == FORM and isinstance(body, dict):
        return encode_form(body).encode("utf-8", "replace")
    return json.dumps(body).encode()


def _aim(chance: random.Random, target: Target) -> tuple[str, str, bytes]:
    """A method, a path and a body: those of the target, or others in place of some of them."""
    if chance.random() < 0.3:
        path = target.path if chance.random() < 0.8 else chance.choice(ODD_PATHS)
        method = target.method if chance.random() < 0.5 else chance.choice(METHODS)
        if path.startswith(KEPT) and method in ("PUT", "DELETE"):
            method = "GET"  # with the token of the state it would replace or remove the card
        return method, path, chance.choice(RAW_BODIES)
    body = encode(target, change_value(chance, chance.choice(target.bodies)))
    if body and chance.random() < 0.1:
        at = chance.randrange(len(body))
        body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
    return target.method, target.path, body


def change_value(chance: random.Random, value: Any) -> Any:
    """The value, or one in which one or two parts are others, are missing or have another name."""
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        value = _change_once(chance, value)
    return value


def _change_once(chance: random.Random, value: Any) -> Any:
    """Go down by chance, and change the part where the way ends."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        rest = {name: part for name, part in value.items() if name != key}
        if chance.random() < 0.1:
            return rest
        if chance.random() < 0.05:
            return {**rest, "x" * chance.choice((1, 2000)): value[key]}
        return {**value, key: _change_once(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], _change_once(chance, value[at]), *value[at + 1 :]]
    return value if isinstance(value, str) and not value else chance.choice(VALUES)


Parts = tuple[str, list[str], list[str], bytes]
Change = Callable[[random.Random, str, list[str], list[str], bytes], Parts]


def _line(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    head = chance.choice(
        (
            head.replace("HTTP/1.1", "HTTP/9.9"),
            head.replace(" ", "  "),
            head[:-9],
            "\x00" + head,
            head.lower(),
        )
    )
    return head, lines, framing, body


def _long(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    size = chance.choice((1000, 60_000, 70_000, 300_000))
    if chance.random() < 0.3:
        return head.replace(" HTTP", "?" + "q" * size + " HTTP"), lines, framing, body
    return head, [*lines, "X-Long: " + "v" * size], framing, body


def _many(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    return head, [*lines, *(f"X-{n}: {n}" for n in range(chance.choice((50, 99, 101, 3000))))], framing, body


def _twice(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    return head, [*lines, chance.choice(lines)], framing, body


def _host(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    return head, [f"Host: {chance.choice(HOSTS)}", *lines[1:]], framing, body


def _odd(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    odd = (
        "Origin: http://evil.example",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Content-Type: text/plain",
        "Expect: 100-continue",
        "Connection: Upgrade\r\nUpgrade: websocket",
        "Connection: close",
        "X-OpenStarry-Trace-Id: \x01",
        "X-OpenStarry-Trace-Depth: -99999999999999999999",
        "X-Retinue-For: " + "a" * 5000,
        "Idempotency-Key: \xff",
        "Mcp-Session-Id: nothing",
        "Last-Event-Id: 9",
        "Authorization: Basic !!!",
        "Authorization: Bearer " + "a.b.c" * 100,
        "Content-Range: 99-1",
        "Range: bytes=9-1",
        "X-Bad\x00: 1",
        " folded",
        "no colon",
        ": empty",
    )
    return head, [*lines, chance.choice(odd)], framing, body


def _framing(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n"
    return chance.choice(
        (
            (head, lines, ["Transfer-Encoding: chunked"], chunked + b"\r\n"),
            (head, lines, ["Transfer-Encoding: chunked"], chunked + b"T: " + b"t" * 100_000 + b"\r\n\r\n"),
            (head, lines, ["Transfer-Encoding: chunked"], chunked + b"Authorization: Bearer x\r\n\r\n"),
            (head, lines, ["Transfer-Encoding: chunked", *framing], chunked),
            (head, lines, ["Transfer-Encoding: gzip, x"], body),
            (head, lines, ["Transfer-Encoding: chunked"], b"zz\r\n" + body),
            (head, lines, [*framing, "Content-Length: 7"], body),
            (head, lines, ["Content-Length: -1"], body),
            (head, lines, [f"Content-Length: {2**64}"], body),
            (head, lines, ["Content-Length: 99999999"], body),
            (head, lines, [], body),
        )
    )


_HEAD_CHANGES: tuple[Change, ...] = (_line, _long, _many, _twice, _host, _odd, _odd, _framing, _framing)
