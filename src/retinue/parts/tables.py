"""The settings of a process by the class of their table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class Tables:
    """The tables of ``retinue.toml``, each found by its class; a table that is left out has its defaults."""

    def __init__(self, tables: Iterable[object]) -> None:
        self._tables = {type(table): table for table in tables}

    def get(self, kind: type[T]) -> T:
        """The table of this class."""
        for known, table in self._tables.items():
            if issubclass(known, kind):
                return table  # type: ignore[return-value]
        return kind()
