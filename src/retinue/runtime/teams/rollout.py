"""The rollout of a team as its row keeps it: which digest replaces which, at which stage.

``up`` asks for a rollout by writing it. The hub goes through the stages, and writes each of them before it
enters it, so a hub that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from retinue.core.errors import StateDamagedError
from retinue.mesh.directory.rollouts import WHOLE, Rollout, mark_of
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State

Stage = Literal["asked", "start", "check", "serve", "drain", "back"]
"""``asked`` = the hub has not seen it yet; ``start`` and ``check`` have the weight 0, ``serve`` that of its
step; in ``drain`` the old digest ends its chains, in ``back`` the new one, which has failed."""


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """A rollout as it is stored. Digests are ``sha256:…``; ``entered_at`` is seconds since 1970.

    ``step`` is the index in ``steps`` of the weight in per cent. ``figures`` are those of the last stage, for
    people. ``signer`` and ``reference`` are those of the new digest.
    """

    old: str
    new: str
    version: str
    steps: Sequence[int]
    hold_s: float
    drain_s: float
    stage: Stage = "asked"
    step: int = 0
    entered_at: float = 0.0
    signer: str = ""
    reference: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    held_by: Sequence[str] = ()
    """The runs for which the old digest still runs, the first few."""
    is_scheduled: bool = False
    """Whether the schedules of the team are those of the new digest, which serves; then the old one ends."""
    is_return: bool = False
    """Whether the new digest was ending its chains and runs for the old one; it goes on with them."""

    @property
    def weight(self) -> int:
        """The share of the new chains in per cent that the new digest gets now."""
        if self.stage == "drain":
            return WHOLE
        return self.steps[self.step] if self.stage == "serve" else 0

    @property
    def is_open(self) -> bool:
        """Whether the new digest has neither failed nor replaced the old one."""
        return self.stage not in ("drain", "back")

    def enter(self, stage: Stage, at: float, *, step: int | None = None) -> StoredRollout:
        """The rollout at another stage, with the same step or another one."""
        return replace(self, stage=stage, step=self.step if step is None else step, entered_at=at)

    def for_calls(self, team: str) -> Rollout:
        """The rollout as calls see it."""
        old, new = mark_of(self.old), mark_of(self.new)
        has_failed = self.stage == "back"
        return Rollout(team, old, new, self.weight, has_failed=has_failed, is_return=self.is_return)

    def turn_back(self, row: TeamRow, at: float) -> StoredRollout:
        """What a return that fails leaves: the digest that serves goes on, the other one ends its chains."""
        return StoredRollout(
            old=self.new,
            new=self.old,
            version=row.version,
            steps=(WHOLE,),
            hold_s=0.0,
            drain_s=self.drain_s,
            stage="drain",
            entered_at=at,
            signer=row.signer,
            reference=row.reference,
        )

    def list_running(self) -> tuple[str, ...]:
        """The digests whose programs run, the one that lists show first."""
        if self.stage == "asked" and not self.is_return:
            return (self.old,)
        return (self.new, self.old) if self.weight >= WHOLE else (self.old, self.new)

    def describe(self) -> str:
        """The stage as people read it."""
        if self.stage == "serve":
            return f"{self.weight} %"
        words = {"asked": "asked for", "start": "starting", "check": "checking", "back": "ending, it failed"}
        return words.get(self.stage, "the digest before ends its chains")

    def as_json(self) -> dict[str, Any]:
        """The stored form."""
        return asdict(self)


def read_rollout(row: TeamRow) -> StoredRollout | None:
    """The rollout of a row; None where there is none. Raises StateDamagedError."""
    if not row.rollout:
        return None
    try:
        stored = StoredRollout(**row.rollout)
        return replace(stored, steps=tuple(stored.steps), held_by=tuple(stored.held_by))
    except TypeError as error:
        raise StateDamagedError(
            f"the rollout of {row.name}", str(error), remedy=f"retinue down {row.name}"
        ) from error


def list_rollouts(state: State) -> dict[str, StoredRollout]:
    """The rollouts of all teams by name. Raises StateDamagedError."""
    rollouts = {name: read_rollout(row) for name, row in TeamStore(state).read_rows().items()}
    return {name: rollout for name, rollout in rollouts.items() if rollout is not None}


def begin_again(state: State, at: float) -> None:
    """Let rollouts begin again whose weight was above 0, because all programs have ended with the hub.

    New chains go to the old digest until the programs of the new one answer and have passed their check.
    Then it gets the weight that it had.
    """

    def change(row: TeamRow) -> TeamRow:
        rollout = read_rollout(row)
        if rollout is None or rollout.stage not in ("check", "serve"):
            return row
        return replace(row, rollout=rollout.enter("start", at).as_json())

    for name in list_rollouts(state):
        TeamStore(state).change_row(name, change)


def list_digests(row: TeamRow) -> tuple[str, ...]:
    """The digests of a team whose programs run, the one that lists show first."""
    rollout = read_rollout(row)
    if rollout is not None:
        return rollout.list_running()
    return () if row.active is None else (row.active,)


def choose_digest(row: TeamRow, chain: str) -> str | None:
    """The digest that a new chain with this trace id gets at the entrance; None for a team that is down.

    A schedule that two digests have fires once, for this digest.
    """
    rollout = read_rollout(row)
    if rollout is None:
        return row.active
    calls = rollout.for_calls(row.name)
    return rollout.new if calls.choose(chain) == calls.new else rollout.old
