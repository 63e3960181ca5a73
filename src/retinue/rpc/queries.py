"""Asks other agents about their capabilities: a live answer, else an answer from the record."""

from __future__ import annotations

from collections.abc import Callable

from retinue.core.call import Answer, Call
from retinue.core.errors import RemoteFaultError
from retinue.core.record import Listing, Skill
from retinue.mesh.asking.query import answer_query, parse_query
from retinue.mesh.channel import Channel
from retinue.mesh.directory.overrides import states_visibility
from retinue.mesh.dispatch import Invoker
from retinue.mesh.guard.trace_guard import AdmittedCall

_NO_SUCH_METHOD = -32601


class PeerQueries:
    """Asks over ``/execute``; an agent that does not know the question, or has no such endpoint, is answered
    for, and the answer has ``"live": false``. So is an agent of another make for a caller outside the mesh.

    ``peers`` is the invoker of agents with ``/execute``, ``is_peer`` says whether it serves a listing.
    """

    def __init__(self, peers: Invoker, is_peer: Callable[[Listing], bool] = lambda listing: True) -> None:
        self._peers = peers
        self._is_peer = is_peer

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One question; raises InvalidParametersError for a malformed one before anybody is asked."""
        query = parse_query(call.arguments)
        # An agent of another make does not know what a client without a token may see of it.
        may_ask = "mesh" in call.principal.scopes or states_visibility(listing)
        if may_ask and listing.record.url is not None and self._is_peer(listing):
            try:
                return await self._peers.invoke(listing, skill, call, admitted, channel)
            except RemoteFaultError as error:
                if error.code != _NO_SUCH_METHOD:
                    raise
        return Answer(answer_query(listing.record, query, call.principal.scopes, is_live=False))
