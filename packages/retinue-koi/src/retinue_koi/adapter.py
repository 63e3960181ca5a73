"""``MCPAdapter``: the personalities of a network, and their lists of agents and tools (seed 003, K-20).

It holds every version by its RID. A name means its newest version: the highest one, then the latest manifest,
never the last arrival (specification 4, doubts 3 to 5; specification 7.4). The lists equal those of seed 003
byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from retinue.mesh.directory.versions import VersionKey, is_stable, version_key
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile
from retinue_koi.codec.profile_records import shown_personality

_log = structlog.get_logger("retinue.koi")


@dataclass(frozen=True, slots=True)
class Held:
    """One version of a personality; ``timestamp`` and ``sha256_hash`` are those of its manifest."""

    profile: PersonalityProfile
    timestamp: datetime
    sha256_hash: str | None = None


Observer = Callable[[AgentPersonality, Held | None], None]
"""Called with a RID and its present state; None = it was removed."""


class MCPAdapter:
    """The directory of personalities. ``agents`` maps each name to the newest profile of that name."""

    def __init__(self) -> None:
        self.agents: dict[str, PersonalityProfile] = {}
        self._held: dict[str, Held] = {}
        self._versions: dict[str, dict[str, str]] = {}
        self._observers: list[Observer] = []

    def register_agent(
        self,
        profile: PersonalityProfile,
        *,
        timestamp: datetime | None = None,
        sha256_hash: str | None = None,
    ) -> bool:
        """Add or replace a personality; returns whether anything changed.

        The same content again changes nothing, and an older manifest is ignored. Without a timestamp the
        profile counts as made now.
        """
        rid = str(profile.rid)
        made = _aware(timestamp)
        held = self._held.get(rid)
        if held is not None:
            if _is_same(held, profile, sha256_hash):
                _log.debug("personality known", rid=rid)
                return False
            if made < held.timestamp:
                _log.info("older personality ignored", rid=rid, held=str(held.timestamp), got=str(made))
                return False
        # a copy: its caller may go on changing the profile
        now = Held(profile.model_copy(deep=True), made, sha256_hash)
        self._held[rid] = now
        self._versions.setdefault(profile.rid.name, {})[profile.rid.version] = rid
        self._choose(profile.rid.name)
        _log.info("personality registered" if held is None else "personality updated", rid=rid)
        self._tell(profile.rid, now)
        return True

    def forget_agent(self, rid: AgentPersonality) -> bool:
        """Remove one version; the name then means the newest that is left. False if it is not held."""
        if self._held.pop(str(rid), None) is None:
            return False
        versions = self._versions[rid.name]
        del versions[rid.version]
        if not versions:
            del self._versions[rid.name]
        self._choose(rid.name)
        _log.info("personality forgotten", rid=str(rid))
        self._tell(rid, None)
        return True

    def find(self, rid: AgentPersonality) -> Held | None:
        """The state of exactly this version."""
        return self._held.get(str(rid))

    def list_held(self) -> list[Held]:
        """Every version of every personality, by the order of arrival."""
        return list(self._held.values())

    def list_versions(self, name: str) -> list[Held]:
        """The versions of one name, newest first."""
        held = [self._held[rid] for rid in self._versions.get(name, {}).values()]
        return sorted(held, key=_newness, reverse=True)

    def get_agent(self, name: str) -> PersonalityProfile | None:
        """The newest profile of this name, or None."""
        return self.agents.get(name)

    def list_agents(self) -> list[dict[str, Any]]:
        """The agents as resources: id, type, description and url, sorted by name."""
        return [shown_personality(profile).render_resource() for profile in self._sorted()]

    def get_tools_for_agent(self, agent_name: str) -> list[dict[str, Any]]:
        """The callable traits of one agent as tools, under their own names; [] for an unknown one."""
        profile = self.agents.get(agent_name)
        return [] if profile is None else shown_personality(profile).render_tools()

    def get_all_tools(self) -> list[dict[str, Any]]:
        """The tools of every agent, as ``<agent>.<trait>``, sorted by agent."""
        personalities = map(shown_personality, self._sorted())
        return [tool for personality in personalities for tool in personality.render_tools(prefixed=True)]

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call ``observer`` after each change; returns the function that ends it."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def _sorted(self) -> Iterator[PersonalityProfile]:
        return (self.agents[name] for name in sorted(self.agents))

    def _choose(self, name: str) -> None:
        versions = self.list_versions(name)
        if versions:
            self.agents[name] = versions[0].profile
        else:
            self.agents.pop(name, None)

    def _tell(self, rid: AgentPersonality, held: Held | None) -> None:
        for observer in tuple(self._observers):
            observer(rid, held)


def _is_same(held: Held, profile: PersonalityProfile, sha256_hash: str | None) -> bool:
    if held.sha256_hash is not None and sha256_hash is not None:
        return held.sha256_hash == sha256_hash
    return held.profile == profile


def _newness(held: Held) -> tuple[bool, VersionKey, datetime]:
    version = held.profile.rid.version
    return is_stable(version), version_key(version), held.timestamp


def _aware(timestamp: datetime | None) -> datetime:
    if timestamp is None:
        return datetime.now(UTC)
    return timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)
