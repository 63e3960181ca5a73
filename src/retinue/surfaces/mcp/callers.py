"""Who sent an MCP message, through which door and in which chain."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from mcp.server.context import ServerRequestContext
from starlette.requests import Request

from retinue.core.call import Principal, TraceContext
from retinue.protocols.trace import merge_traces, parse_trace_headers, parse_trace_meta
from retinue.surfaces.mcp_visitors import CLIENT, narrow
from retinue.surfaces.security import visitor_of

Context = ServerRequestContext[Any, Any]

STDIO = Principal("stdio", "local", frozenset({"exposed", "runs_code"}))
"""Whoever started this process as its MCP server: it may run code, and sees what clients see."""

_NO_TRACE = TraceContext(id="")

asking: ContextVar[Principal] = ContextVar("retinue_mcp_asking", default=CLIENT)
"""Who sent the request being served, where the SDK asks a question without naming its caller."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, with what rights, through which door and in which chain."""

    principal: Principal
    door: str
    trace: TraceContext


def principal_of(context: Context) -> Principal:
    """Who sent this message; over stdio whoever started the process."""
    request = context.request
    return narrow(visitor_of(request.scope).principal) if isinstance(request, Request) else STDIO


def caller_of(context: Context) -> Caller:
    """The caller, with the trace of headers and ``_meta`` (SPEC 5, doubt 3)."""
    request = context.request
    meta: Mapping[str, Any] = context.meta or {}
    told = parse_trace_meta(meta) if meta else None
    if not isinstance(request, Request):
        return Caller(STDIO, "mcp-stdio", told or _NO_TRACE)
    given = parse_trace_headers(request.headers)
    trace = merge_traces(given, told) or _NO_TRACE
    return Caller(narrow(visitor_of(request.scope).principal), "mcp", trace)
