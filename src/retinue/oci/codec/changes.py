"""The request that waits for a change of a registry: hubs that read the registry of another hub send it.

``GET /v2/_changes?after=STAMP`` is an extension. It is answered when the registry has another stamp than
``STAMP``, and after some seconds at the latest. A registry without it answers 404.
"""

from __future__ import annotations

from urllib.parse import quote

import orjson

from retinue.oci.codec.exchange import Flow, RegistryRequest

CHANGES_PATH = "/v2/_changes"
CHANGES_TYPE = "application/vnd.retinue.changes.v1+json"
WAIT_S = 5.0
"""How long an answer waits for a change; shorter than the usual time limit of a registry's answer."""

_MAX_BYTES = 4096


def render_stamp(stamp: str) -> bytes:
    """Render the answer with the stamp of the registry now."""
    return orjson.dumps({"stamp": stamp})


def wait_for_change(after: str) -> Flow[str | None]:
    """The stamp of the registry once it is not ``after``, or after `WAIT_S`; None if it has no stamps."""
    response = yield RegistryRequest(
        "GET",
        f"{CHANGES_PATH}?after={quote(after, safe='')}",
        {"accept": CHANGES_TYPE},
        max_response_bytes=_MAX_BYTES,
        what="changes",
    )
    if response.status != 200 or not response.headers.get("content-type", "").startswith(CHANGES_TYPE):
        return None
    try:
        stamp = orjson.loads(response.body)["stamp"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return stamp if isinstance(stamp, str) else None
