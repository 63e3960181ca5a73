"""Checks the hub: its answer, its readiness, and the cost of its tool list for a model.

The tokens of a list are estimated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib.metadata import version

import orjson

from retinue.core.durations import render_duration
from retinue.core.errors import CallTimedOutError, RetinueError, StateError
from retinue.mcp.codec.tool_calls import VERSION, list_request
from retinue.mcp.codec.wire import NegotiatedSession
from retinue.mcp.upstream.client import open_response
from retinue.parts.part import Check
from retinue.rpc.probe import answers
from retinue.runtime.checks.machine import failed
from retinue.settings import Settings
from retinue.storage.state import HUB_VARIABLE, HubAddress, State
from retinue.web.http_client import HttpClient
from retinue.web.mesh_tokens import find_hub_token
from retinue.web.transport import TransportError

BYTES_PER_TOKEN = 4
"""The usual estimate for English and JSON; models differ by about a third either way."""

READY_S = 3.0
LIST_TIMEOUT_S = 15.0
MANY_TOKENS = 20_000
"""A tenth of the context window of many models."""


async def check_hub(
    state: State, named_url: str | None, settings: Settings, http: HttpClient
) -> tuple[Check, str | None]:
    """Check the hub of this state; also returns its URL if it answers."""
    try:
        hub = state.read_hub()
    except RetinueError as error:
        return failed("hub", error), None
    url = named_url or (hub.url if hub is not None else None)
    if url is None:
        return Check("hub", "ok", "not running; commands work without a hub (start it: retinue hub)"), None
    problem = await answers(http, url, timeout_s=settings.timeouts.probe_s)
    if problem is None:
        process = _describe_process(hub) if hub is not None and not named_url else ""
        return Check("hub", "ok", f"{url} answers{process}"), url
    remedy = f"start it, or unset {HUB_VARIABLE}" if named_url else "restart it: retinue hub"
    return Check("hub", "fail", f"{url} does not answer: {problem}", remedy), None


def _describe_process(hub: HubAddress) -> str:
    others = f" and {hub.processes} processes that serve" if hub.processes > 1 else ""
    return f" (pid {hub.pid}{others})"


async def check_ready(state: State, url: str, settings: Settings, http: HttpClient) -> list[Check]:
    """The problems that the hub itself reports; nothing for a hub without ``/ready``."""
    token = find_hub_token(state, url)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    # its own answer takes two seconds while the database hangs
    timeout_s = settings.timeouts.probe_s + READY_S
    try:
        reply = await http.request("GET", f"{url}/ready", headers=headers, timeout_s=timeout_s)
        shown = orjson.loads(reply.body) if reply.status in (200, 503) else {}
        status = str(shown.get("status", ""))
        problems = [
            f"{problem['what']} {problem.get('name', '')}".strip() + f": {problem['reason']}"
            for problem in shown.get("problems", ())
        ]
    except (TransportError, CallTimedOutError) as error:
        return [Check("ready", "fail", f"{url}/ready does not answer: {error}", "restart it: retinue hub")]
    except (ValueError, AttributeError, KeyError, TypeError):
        return [Check("ready", "warn", f"{url}/ready returns no status", "is it a hub?")]
    if not status:
        return []
    condition = "; ".join([f"the hub is {status}", *problems])
    remedy = "retinue docs operating" if problems or status != "ready" else ""
    return [
        Check(
            "ready",
            "fail" if reply.status == 503 else "warn" if status == "degraded" else "ok",
            condition,
            remedy,
        )
    ]


async def check_list(state: State, url: str, settings: Settings, http: HttpClient) -> Check:
    """Estimate the tokens of the hub's tool list."""
    # the first MCP request of a hub loads the SDK
    timeout_s = max(settings.timeouts.probe_s, LIST_TIMEOUT_S)
    shown = await measure_list(http, url, None, timeout_s=timeout_s)
    token = find_hub_token(state, url)
    connected = None if token is None else await measure_list(http, url, token, timeout_s=timeout_s)
    if connected is None and token is not None:
        raise StateError(
            "the hub refuses the token of this state", remedy="restart the hub, or join it again: --join"
        )
    if connected is None:
        connected = shown
    if connected is None:
        return Check("tool list", "ok", "the hub requires a token, and this state has none for it")
    size = f"{shown or 'refused'} without a token; {connected} with it (JSON bytes / {BYTES_PER_TOKEN})"
    if connected.tokens > MANY_TOKENS:
        remedy = 'set hub.listing = "search" in retinue.toml, or expose fewer skills'
        return Check("tool list", "warn", size, remedy)
    return Check("tool list", "ok", size)


@dataclass(frozen=True, slots=True)
class ListCost:
    """The number of tools in a client's list, and the size of their names, descriptions and input schemas."""

    tools: int
    size_bytes: int

    @property
    def tokens(self) -> int:
        """Estimated number of tokens of the list."""
        return round(self.size_bytes / BYTES_PER_TOKEN)

    def __str__(self) -> str:
        return f"{self.tools} tools, about {self.tokens:,} tokens ({self.size_bytes / 1000:,.1f} kB)"


async def measure_list(http: HttpClient, url: str, token: str | None, *, timeout_s: float) -> ListCost | None:
    """Measure the tool list of the hub at ``url`` for a client with ``token``; None if it is refused.

    Raises StateError.
    """
    message = list_request("retinue", version("retinue"))
    headers = NegotiatedSession().headers_of(message)
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    try:
        async with (
            asyncio.timeout(timeout_s),
            open_response(http, "POST", f"{url}/mcp", headers, message) as response,
        ):
            while response.reply is None and await response.next():
                pass
    except (TransportError, TimeoutError) as error:
        cause = str(error) or f"no answer within {render_duration(timeout_s)}"
        raise StateError(
            f"the hub returns no tool list: {cause}", remedy="restart it: retinue hub"
        ) from error
    if response.status in (401, 403):
        return None
    reply = response.reply
    tools = None if reply is None or reply.result is None else reply.result.get("tools")
    if not isinstance(tools, list):
        raise _no_list(response.status)
    return ListCost(len(tools), sum(len(orjson.dumps(_visible_to_model(tool))) for tool in tools))


def _visible_to_model(tool: object) -> object:
    """The fields of a tool that reach the model; ``_meta`` and annotations stay in the client."""
    if not isinstance(tool, dict):
        return tool
    return {key: tool[key] for key in ("name", "description", "inputSchema") if key in tool}


def _no_list(status: int) -> RetinueError:
    return StateError(
        f"the hub answers with status {status} and no tool list (version {VERSION})",
        remedy="restart it: retinue hub",
    )
