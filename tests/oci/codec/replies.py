"""Runs a flow of requests against prepared replies."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from retinue.oci.codec.exchange import RegistryRequest, Response

BASE = "http://registry:5000"

T = TypeVar("T")
Reply = tuple[int, dict[str, str], bytes]


def feed(flow: Generator[RegistryRequest, Response, T], *replies: Reply) -> tuple[T, list[RegistryRequest]]:
    """Run a flow against prepared replies; all must be used."""
    asked = [next(flow)]
    for status, headers, body in replies:
        url = asked[-1].url if "://" in asked[-1].url else BASE + asked[-1].url
        try:
            asked.append(flow.send(Response(status, headers, body, url)))
        except StopIteration as finished:
            assert len(asked) == len(replies)
            value: T = finished.value
            return value, asked
    raise AssertionError(f"the flow asks for more: {asked[-1]}")
