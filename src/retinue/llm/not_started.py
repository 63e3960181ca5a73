"""Lists the model agents that this machine cannot start, each with its remedy.

They are a source of the directory, so that a client sees the missing part and its remedy; a call fails with
the same reason. A model that is started lists itself, like every other agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import orjson

from retinue.cards.pallet_card import render_card
from retinue.core.call import Answer, Call
from retinue.core.errors import AgentUnreachableError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.core.trust import Trust
from retinue.llm.spec import Unavailable
from retinue.mesh.channel import Channel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.sources import Give, Reading, Source
from retinue.mesh.guard.trace_guard import AdmittedCall

MODELS = "models"
"""The name of the source."""

_ALL = frozenset({"mesh", "exposed"})


class ModelsNotStarted(Source):
    """A source of unavailable agents, and the invoker that raises the reason.

    One whose name another agent has is not listed: that agent is meant.
    """

    name = MODELS
    trust = Trust.OWN_MESH

    def __init__(self, models: Mapping[str, tuple[AgentRecord, Unavailable]]) -> None:
        self._found = models
        self._listings = {name: _list(record, missing) for name, (record, missing) in models.items()}
        self._taken: frozenset[str] = frozenset()
        self._find_taken: Callable[[], frozenset[str]] = frozenset

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        self._taken = self._find_taken()
        return Reading(tuple(listing for name, listing in self._listings.items() if name not in self._taken))

    async def read_key(self, key: str) -> Sequence[Listing]:
        return [self._listings[key]] if key in self._listings else []

    def changed(self) -> bool:
        return bool(self._found) and self._find_taken() != self._taken

    def watch(self, directory: Directory) -> None:
        """Leave out, from now on, an agent with the name of another source's agent."""

        def find_taken() -> frozenset[str]:
            named = {name: directory.find_named(name) for name in self._found}
            return frozenset(
                name for name, listing in named.items() if listing is not None and listing.source != MODELS
            )

        self._find_taken = find_taken

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


def _list(record: AgentRecord, missing: Unavailable) -> Listing:
    card = render_card(record, scopes=_ALL)
    digest = sha256(orjson.dumps(card, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Listing(
        record=record,
        source=MODELS,
        key=record.name,
        digest=f"sha256:{digest}",
        reachable=False,
        last_error=f"{missing.reason}; {missing.remedy}",
    )
