"""Pure: renders the details of an A2A error (its section 9.5): an ``ErrorInfo``, and the facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

A2A_DOMAIN = "a2a-protocol.org"
"""The domain of the reasons that A2A defines."""

OWN_DOMAIN = "retinue"

_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_STRUCT = "type.googleapis.com/google.protobuf.Struct"

_LONGEST_VALUE = 200
"""Characters; metadata of an ``ErrorInfo`` are short texts."""


def render_details(reason: str, facts: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The ``data`` of an error; without ``facts`` the reason is one of A2A itself."""
    if facts is None:
        return [{"@type": _ERROR_INFO, "reason": reason, "domain": A2A_DOMAIN}]
    texts = {key: _as_text(value) for key, value in facts.items() if value is not None}
    metadata = {key: text for key, text in texts.items() if len(text) <= _LONGEST_VALUE}
    return [
        {"@type": _ERROR_INFO, "reason": reason, "domain": OWN_DOMAIN, "metadata": metadata},
        {"@type": _STRUCT, "value": dict(facts)},
    ]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
