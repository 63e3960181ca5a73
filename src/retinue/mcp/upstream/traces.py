"""The trace of a message to an imported server: that of the call that causes it, else one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.mcp.codec.foreign import trace_for
from retinue.mesh.guard.trace_guard import new_trace
from retinue.web.codec.trace import TRACE_KEYS

TraceMeta = Mapping[str, Any]
"""A trace as keys of ``_meta``."""


def own_trace() -> TraceMeta:
    """The trace of what this process asks for itself, such as the lists of a server."""
    return trace_for(new_trace())


def trace_of(params: Mapping[str, Any]) -> TraceMeta:
    """The trace in the parameters of a request."""
    meta = params.get("_meta") or {}
    return {key: value for key, value in meta.items() if key.lower() in TRACE_KEYS}
