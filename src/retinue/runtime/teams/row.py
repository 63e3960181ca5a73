"""What the state knows of one team: the digests that run and ran, and how they were started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import semver


@dataclass(frozen=True, slots=True)
class TeamRow:
    """What the state knows of a team. Digests are ``sha256:…``; ``active`` is None for one that is down.

    ``highest`` is the highest version that was accepted, ``failed`` the last digest that did not serve.
    """

    name: str
    active: str | None = None
    version: str = ""
    since: str = ""
    reference: str = ""
    signer: str = ""
    highest: str = ""
    before: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """The version of each digest whose files are kept."""
    signers: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] = ()
    """Its agents and imports as ``NAME@TEAM``, also those of a digest that is started now."""
    undo: Mapping[str, Any] | None = None
    """The row before the command that changes the team now; {} for none, None where no command does."""
    rollout: Mapping[str, Any] = field(default_factory=dict)
    """Which digest replaces which (`rollout.StoredRollout`); {} where none does."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """The id of the file with the secrets of each digest, see `TeamStore.keep_secrets`."""
    is_unscheduled: bool = False
    """Whether the digest serves, and its schedules are still to be added."""
    earlier: str | None = None
    """The digest before ``before``, which is that of a team that is down."""
    references: Mapping[str, str] = field(default_factory=dict)
    """The reference with which each digest was started."""
    data: int = 0
    """The form of the data of the digest that served last; 0 where an earlier Retinue wrote the row."""

    @property
    def digests(self) -> frozenset[str]:
        """The digests that run or that the next `up --back` may start."""
        known = (self.active, self.before, self.earlier, self.rollout.get("old"), self.rollout.get("new"))
        return frozenset(digest for digest in known if digest is not None)

    def serving(self, digest: str, version: str, *, reference: str, signer: str, data: int) -> TeamRow:
        """The row whose digest serves now; the one that served until now is that before."""
        before = self.active
        if before is None:
            before = self.earlier if digest == self.before else self.before
        return replace(
            self,
            active=digest,
            version=version,
            since=read_clock(),
            reference=reference,
            signer=signer,
            highest=max(self.highest or version, version, key=semver.Version.parse),
            before=before,
            earlier=None,
            failed={},
            versions={**self.versions, digest: version},
            signers={**self.signers, digest: signer},
            references={**self._references(), digest: reference},
            data=data,
        )

    def down(self) -> TeamRow:
        """The row of a team that is stopped; `up --back` starts what ran, and then the digest before that."""
        return replace(
            self,
            active=None,
            before=self.active,
            earlier=self.before,
            names=(),
            rollout={},
            is_unscheduled=False,
            references=self._references(),
        )

    def find_reference(self, digest: str) -> str:
        """The reference with which a digest was started; "" where an earlier Retinue has not kept it."""
        return self._references().get(digest, "")

    def _references(self) -> Mapping[str, str]:
        last = self.active or self.before  # of a row that an earlier Retinue wrote
        own = {last: self.reference} if last is not None and self.reference else {}
        return {**own, **self.references}

    @property
    def is_settled(self) -> bool:
        """Whether no command is about to change the team, and none was killed while it did."""
        return self.undo is None

    def settled(self) -> TeamRow | None:
        """The row; that before the command, where one changes it; None where there was none before."""
        if self.undo is None:
            return self
        return TeamRow(**self.undo) if self.undo else None


def read_clock() -> str:
    """The time as rows have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
