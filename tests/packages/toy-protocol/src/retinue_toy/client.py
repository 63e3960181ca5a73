"""The client: lists the agents of other toy servers and calls their skills."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

import orjson

from retinue.cards.pallet_card import parse_card
from retinue.core.call import Answer, Call
from retinue.core.errors import AgentUnreachableError, RemoteFaultError, RetinueError
from retinue.core.record import Endpoint, Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.directory.sources import Give, Reading, Source
from retinue.mesh.guard.trace_guard import AdmittedCall, TraceSigner
from retinue.web.codec.trace import CALLS_USED_KEY, parse_calls_used, render_trace_headers
from retinue.web.transport import HttpRequester, TransportError


@dataclass(slots=True)
class ToyClient(Source):
    """A source and its invoker; ``failures`` are the reasons by the URLs of unread servers."""

    http: HttpRequester
    signer: TraceSigner
    servers: Sequence[str]
    failures: dict[str, str] = field(default_factory=dict)
    name: str = "toy"

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        self.failures.clear()
        return Reading(tuple([listing for url in self.servers for listing in await self._read(url)]))

    async def read_key(self, key: str) -> Sequence[Listing]:
        return [listing for listing in (await self.read_all()).listings if listing.key == key]

    async def _read(self, server: str) -> list[Listing]:
        try:
            reply = await self.http.request("GET", f"{server}/toy", timeout_s=30)
            records = [parse_card(orjson.dumps(card), reference=server) for card in orjson.loads(reply.body)]
        except (TransportError, RetinueError, ValueError) as error:
            self.failures[server] = str(error)
            return []
        endpoints = (Endpoint("toy", f"{server}/toy"),)
        return [Listing(replace(record, endpoints=endpoints), "toy", record.name) for record in records]

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        name = listing.record.name
        url = f"{listing.record.endpoints[0].url}/{quote(name)}/{quote(skill.id)}"
        with admitted.forward() as outgoing:
            trace = render_trace_headers(self.signer.sign(outgoing.trace, name, skill.id))
            headers, body = {"content-type": "application/json", **trace}, orjson.dumps(call.arguments)
            try:
                reply = await self.http.request("POST", url, headers=headers, body=body, timeout_s=30)
            except TransportError as error:
                raise AgentUnreachableError(name, url, error.cause, sent=error.sent) from error
            outgoing.record_usage(parse_calls_used(reply.headers.get(CALLS_USED_KEY)))
        answer = orjson.loads(reply.body)
        if reply.status != 200:
            raise RemoteFaultError(name, answer.get("code", -32603), answer["detail"], answer.get("data"))
        return Answer(value=answer["result"])
