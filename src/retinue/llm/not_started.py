"""The model agents that this machine cannot start, as a source of the directory: each with its reason.

They are listed, so that a client sees what is missing and how to add it; calling one fails with the same
reason. A model that is started lists itself, like every other agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import orjson

from retinue.cards.pallet_card import render_card
from retinue.core.call import Answer, Call
from retinue.core.errors import AgentUnreachableError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.llm.spec import Unavailable
from retinue.mesh.channel import Channel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.sources import Give, Reading, Source
from retinue.mesh.guard.trace_guard import AdmittedCall

MODELS = "models"
"""The name of the source."""

_ALL = frozenset({"mesh", "exposed"})


class ModelsNotStarted(Source):
    """A source of agents that are unavailable, and the invoker that says why."""

    name = MODELS

    def __init__(self, found: Mapping[str, tuple[AgentRecord, Unavailable]]) -> None:
        self._found = found
        self._listings = {name: _list(record) for name, (record, _) in found.items()}

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        return Reading(tuple(self._listings.values()))

    async def read_key(self, key: str) -> Sequence[Listing]:
        return [self._listings[key]] if key in self._listings else []

    def report(self, directory: Directory) -> None:
        """Tell the directory that none of them can be reached, and why."""
        for name, (_, missing) in self._found.items():
            directory.record_health(self._listings[name], "unreachable", missing.reason)

    def describe(self) -> list[str]:
        """One line for each: why it is not started, and what to do about it."""
        return [
            f"{name} is not started: {missing.reason}; {missing.remedy}"
            for name, (_, missing) in self._found.items()
        ]

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """Refuse the call with the reason."""
        name = listing.record.name
        missing = self._found[name][1]
        raise AgentUnreachableError.not_started(
            name, missing.reason, f"{missing.remedy}, and restart the hub"
        )


def _list(record: AgentRecord) -> Listing:
    card = render_card(record, scopes=_ALL)
    digest = sha256(orjson.dumps(card, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Listing(record=record, source=MODELS, key=record.name, digest=f"sha256:{digest}")
