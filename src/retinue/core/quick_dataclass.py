"""Dataclasses of the hot path: frozen for type checkers, plain at runtime.

A frozen dataclass sets each field by ``object.__setattr__``, which takes four to five times as long as an
assignment. A call makes about ten such objects with seventy fields: an eighth of its instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as quick_dataclass
else:
    from dataclasses import dataclass

    def quick_dataclass(*, frozen, slots):
        """As ``dataclass`` with these options, with the same equality and hash, but without the freezing."""
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["quick_dataclass"]
