"""The table ``[koi]`` of ``retinue.toml``; every command that reads settings imports it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class KoiTable(BaseModel):
    """``[koi]``: the hub as a coordinator of a KOI network, and what its node accepts.

    ``member_join`` is the node that an agent joins. ``known`` are RIDs or names of nodes, for the policy
    ``known``. With ``keep_on_stop`` an agent that stops stays listed. A coordinator evicts members that have
    not answered for ``evict_after_s``; 0 = never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = False
    join: str | None = None
    member_join: str | None = None
    trust: Literal["open", "known", "signed"] | None = None
    known: tuple[str, ...] = ()
    keep_on_stop: bool = False
    evict_after_s: float = Field(3600.0, ge=0)
