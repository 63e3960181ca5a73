"""The offer of one agent: what its record says, kept ready for each kind of caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retinue.core.record import AgentRecord, Prompt, Resource
from retinue.mesh.changes import ChangeObserver
from retinue.mesh.visibility import is_visible
from retinue.protocols.mcp.names import Names
from retinue.surfaces.mcp.offer import ServerFacts, ToolCatalog


class RecordOffer:
    """``read_record`` gives the record as it is now; ``changes`` tells when it is another."""

    def __init__(
        self,
        read_record: Callable[[], AgentRecord],
        subscribe: Callable[[ChangeObserver], Callable[[], None]],
        *,
        names: Names = "safe",
        logs: bool = False,
    ) -> None:
        self._read_record = read_record
        self._subscribe = subscribe
        self._names = names
        self._logs = logs
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

    def tools(self, scopes: frozenset[str]) -> ToolCatalog:
        found = self._catalogs.get(scopes)
        if found is None:
            seen = [(None, skill) for skill in self._record.skills if is_visible(skill, scopes)]
            found = self._catalogs[scopes] = ToolCatalog(seen, names=self._names)
        return found

    def resources(self, scopes: frozenset[str]) -> Sequence[Resource]:
        return tuple(one for one in self._record.resources if is_visible(one, scopes))

    def prompts(self, scopes: frozenset[str]) -> Sequence[Prompt]:
        return tuple(one for one in self._record.prompts if is_visible(one, scopes))

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        return self._subscribe(observer)

    def _forget(self) -> None:
        self._record = self._read_record()
        self._catalogs = {}
