"""Makes the address that signs a browser in to the dashboard of the running hub."""

from __future__ import annotations

import orjson

from retinue.client.hub_choice import HubChoice
from retinue.core.errors import AgentUnreachableError, RemoteFaultError, StateError
from retinue.core.record import HUB_NAME
from retinue.dashboard.sessions import ROOT
from retinue.web.http_client import HttpClient
from retinue.web.transport import TransportError


async def make_dashboard_link(hub: HubChoice | None) -> str:
    """A link that signs in once, with the rights of the token for the hub.

    Raises StateError without a hub, and for a hub without a token, AgentUnreachableError and
    RemoteFaultError.
    """
    if hub is None:
        raise StateError("no hub is running", remedy="start it: retinue hub")
    url, token = hub.url, hub.token
    if token is None:
        raise StateError(
            f"the hub at {url} is not the one of this state, and there is no token for it",
            remedy=f"open {url}{ROOT}/sign-in and sign in with a token of that hub",
        )
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    async with HttpClient() as http:
        try:
            reply = await http.request(
                "POST", f"{url}{ROOT}/links", headers=headers, body=b"{}", timeout_s=10.0
            )
        except TransportError as error:
            raise AgentUnreachableError(HUB_NAME, url, error.cause, sent=error.sent) from error
    if reply.status != 200:
        raise RemoteFaultError(HUB_NAME, reply.status, f"the hub at {url} gave no link: {reply.body[:200]!r}")
    return url + str(orjson.loads(reply.body)["path"])
