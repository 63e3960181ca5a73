"""The offer of one agent: what its record says, kept ready for each kind of caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retinue.core.call import Principal
from retinue.core.record import AgentRecord, Prompt, Resource
from retinue.mesh.changes import ChangeObserver
from retinue.mesh.visibility import is_visible
from retinue.protocols.mcp.names import Names
from retinue.surfaces.mcp.offer import ServerFacts, ToolCatalog

_NOTHING: frozenset[str] = frozenset()


class RecordOffer:
    """``read_record`` gives the record as it is now; ``subscribe`` tells when it is another.

    ``sees`` tells whether a caller sees the agent at all; to another it shows nothing.
    """

    def __init__(
        self,
        read_record: Callable[[], AgentRecord],
        subscribe: Callable[[ChangeObserver], Callable[[], None]],
        *,
        names: Names = "safe",
        logs: bool = False,
        sees: Callable[[Principal], bool] = lambda _: True,
    ) -> None:
        self._read_record = read_record
        self._subscribe = subscribe
        self._names = names
        self._logs = logs
        self._sees = sees
        self._record = read_record()
        self._catalogs: dict[frozenset[str], ToolCatalog] = {}
        subscribe(lambda _: self._forget())

    @property
    def facts(self) -> ServerFacts:
        record = self._record
        return ServerFacts(
            record.name, record.version or "", record.title, record.description or None, self._logs
        )

    @property
    def agent(self) -> str:
        return self._record.name

    def sight_of(self, principal: Principal) -> frozenset[str]:
        return principal.scopes if self._sees(principal) else _NOTHING

    def tools(self, principal: Principal) -> ToolCatalog:
        scopes = self.sight_of(principal)
        found = self._catalogs.get(scopes)
        if found is None:
            seen = [(None, skill) for skill in self._record.skills if is_visible(skill, scopes)]
            found = self._catalogs[scopes] = ToolCatalog(seen, names=self._names)
        return found

    def resources(self, principal: Principal) -> Sequence[Resource]:
        scopes = self.sight_of(principal)
        return tuple(one for one in self._record.resources if is_visible(one, scopes))

    def prompts(self, principal: Principal) -> Sequence[Prompt]:
        scopes = self.sight_of(principal)
        return tuple(one for one in self._record.prompts if is_visible(one, scopes))

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        return self._subscribe(observer)

    def _forget(self) -> None:
        self._record = self._read_record()
        self._catalogs = {}
