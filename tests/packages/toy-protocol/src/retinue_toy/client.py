"""The agents of other toy servers: a source that lists them, and an invoker that calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

import orjson

from retinue.cards.pallet_card import parse_card
from retinue.core.call import Answer, Call
from retinue.core.errors import AgentUnreachableError, RemoteFaultError
from retinue.core.record import Endpoint, Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.directory.sources import Give, Reading, Source
from retinue.mesh.guard.trace_guard import AdmittedCall, Signer
from retinue.web.codec.trace import CALLS_USED_KEY, parse_calls_used, render_trace_headers
from retinue.web.transport import HttpRequester, TransportError

TOY = "toy"
TIMEOUT_S = 30.0


@dataclass(slots=True)
class ToyAgents(Source):
    """The agents that the servers list; ``failures`` are the reasons by the URLs of unread servers."""

    http: HttpRequester
    servers: Sequence[str]
    failures: dict[str, str] = field(default_factory=dict)
    name: str = TOY

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        self.failures.clear()
        return Reading(tuple([one for url in self.servers for one in await self._read_server(url)]))

    async def read_key(self, key: str) -> Sequence[Listing]:
        return [one for one in (await self.read_all()).listings if one.key == key]

    async def _read_server(self, url: str) -> list[Listing]:
        try:
            reply = await self.http.request("GET", f"{url}/toy", timeout_s=TIMEOUT_S)
        except TransportError as error:
            self.failures[url] = error.cause
            return []
        records = [parse_card(orjson.dumps(card), reference=url) for card in orjson.loads(reply.body)]
        return [
            Listing(replace(one, endpoints=(Endpoint(TOY, f"{url}/toy/{quote(one.name)}"),)), TOY, one.name)
            for one in records
        ]


@dataclass(frozen=True, slots=True)
class ToyInvoker:
    """Calls a skill at the server of its agent."""

    http: HttpRequester
    signer: Signer

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One attempt, as `Invoker`."""
        name, url = listing.record.name, f"{listing.record.endpoints[0].url}/{quote(skill.id)}"
        with admitted.forward() as outgoing:
            trace = render_trace_headers(self.signer.sign(outgoing.trace, name, skill.id))
            headers, body = {"content-type": "application/json", **trace}, orjson.dumps(call.arguments)
            try:
                reply = await self.http.request("POST", url, headers=headers, body=body, timeout_s=TIMEOUT_S)
            except TransportError as error:
                raise AgentUnreachableError(name, url, error.cause, sent=error.sent) from error
            outgoing.record_usage(parse_calls_used(reply.headers.get(CALLS_USED_KEY)))
        answer = orjson.loads(reply.body)
        if reply.status != 200:
            raise RemoteFaultError(name, answer.get("code", -32603), answer["detail"], answer.get("data"))
        return Answer(value=answer["result"])
