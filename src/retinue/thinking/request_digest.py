"""The digests by which a recorded reply of a model is found for a request."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import orjson

from retinue.thinking.completion import CompletionRequest


def digest_request(request: CompletionRequest) -> dict[str, Any]:
    """The digests of a request: of each message, and of all else but ``max_tokens``."""
    document = request.to_json()
    return {
        "system": _digest(document["system"]),
        "tools": _digest([document["tools"], document["tool_choice"]]),
        "output_schema": _digest(document["output_schema"]),
        "messages": [_digest(message) for message in document["messages"]],
    }


def _digest(value: Any) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
