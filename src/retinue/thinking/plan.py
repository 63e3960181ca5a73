"""What a loop is recorded with before it begins, so that no later change of the mesh or a file changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.thinking.condensing import COMPACT_AT
from retinue.thinking.large_results import KEEP_RESULTS_BYTES
from retinue.thinking.limits import Limits
from retinue.thinking.toolbox import SEARCH, PinnedTool

LOOP_VERSION = 1
"""The version of the rules of the loop. A recorded run goes on under the rules that it began with."""


@dataclass(frozen=True, slots=True)
class ThinkPlan:
    """The recorded plan.

    ``agent`` is the model agent and ``choice`` how a run calls it. ``role`` is the role for which it was
    chosen, so that another one may take its place; None for one that was named. ``tools`` are the skills that
    are listed from the start; ``patterns`` and ``deny`` decide about those that are found later. ``unlisted``
    = how many named skills are left for the search. ``approve`` names the skills before
    whose calls a person is asked. A result with more than ``keep_bytes`` of text is kept as an artifact;
    older turns are condensed at ``compact_at`` of the model's window.
    ``session`` is the key of the session that the run goes on with, "" for none; ``history`` is what was said
    in it before.
    """

    version: int
    agent: str
    choice: Mapping[str, Any]
    instructions: str
    prompt: str
    tools: tuple[PinnedTool, ...]
    patterns: tuple[str, ...]
    deny: tuple[str, ...]
    limits: Limits
    output: Mapping[str, Any] | None
    parallel: int
    role: str | None = None
    unlisted: int = 0
    approve: tuple[str, ...] = ()
    keep_bytes: int = KEEP_RESULTS_BYTES
    compact_at: float = COMPACT_AT
    session: str = ""
    history: Mapping[str, Any] | None = None

    @property
    def searches(self) -> bool:
        """Whether the model may find further tools."""
        return SEARCH in self.patterns or self.unlisted > 0
