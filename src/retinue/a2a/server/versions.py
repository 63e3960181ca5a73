"""Reads the A2A version of a request: a header, or a parameter of the url (A2A specification 3.6)."""

from __future__ import annotations

from urllib.parse import parse_qs

VERSION_HEADER = "a2a-version"


def read_version(header: str, query_string: bytes) -> str:
    """The version that the client asks for; "" = it names none."""
    if version := header.strip():
        return version
    if VERSION_HEADER.encode() not in query_string.lower():
        return ""
    parameters = parse_qs(query_string.decode("latin-1"))
    named = (values[-1] for name, values in parameters.items() if name.lower() == VERSION_HEADER)
    return next(named, "").strip()
