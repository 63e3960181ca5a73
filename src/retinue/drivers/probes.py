"""Is an agent there? Its card is asked for: what matters is that the agent answers, not what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from retinue.core.errors import AgentUnreachableError, CallTimedOutError
from retinue.core.record import Listing
from retinue.drivers.http import HttpClient, TransportError
from retinue.mesh.directory import Directory

_AT_ONCE = 32


async def answers(http: HttpClient, url: str, *, timeout_s: float) -> str | None:
    """None when ``/agent-card`` answers with a status below 500; else what went wrong, in a line."""
    try:
        reply = await http.request("GET", f"{url.rstrip('/')}/agent-card", timeout_s=timeout_s)
    except TransportError as error:
        return error.cause
    except CallTimedOutError:
        return f"no answer within {timeout_s:g} s"
    # refused is alive (401, 403, 405); a front that lost the agent behind it is not
    return None if reply.status < 500 else f"status {reply.status}"


async def probe(
    directory: Directory, listings: Iterable[Listing], http: HttpClient, *, timeout_s: float
) -> None:
    """Ask agents whether they are there, and note it in the directory."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(listing: Listing) -> None:
        url = listing.record.url
        if url is None:
            return
        async with limit:
            problem = await answers(http, url, timeout_s=timeout_s)
        if problem is None:
            directory.mark_reachable(listing)
        else:
            directory.mark_unreachable(listing, AgentUnreachableError(listing.record.name, url, problem))

    await asyncio.gather(*(ask(listing) for listing in listings))
