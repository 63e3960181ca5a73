"""What a hub stores of receipts: the file ``receipts.json`` of its state, and claims in a shared database.

The file holds the receipts that were read, and when own ones were issued. It is created with the first
receipt, and one process of a hub writes it. By a claim one of the hubs on a Postgres database issues the
receipt for a card.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog

from retinue.core.errors import StateError
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.history_store import ServerDatabase

_CARDS, _ISSUED = "cards", "issued"
_MAX_ISSUED = 5_000

_TABLES = """
CREATE TABLE IF NOT EXISTS retinue_receipt_claims (id TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL);
"""
_CLAIM = """
INSERT INTO retinue_receipt_claims (id, at) VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET at = excluded.at WHERE retinue_receipt_claims.at <= ? RETURNING id
"""

_log = structlog.get_logger("retinue.receipts")


@dataclass(frozen=True, slots=True)
class IssuedReceipt:
    """The digest of the manifest of the last receipt for a card, and when it was issued."""

    digest: str
    at: float


class ReceiptFile:
    """The file at ``path``; its methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changing = threading.Lock()

    def read_cards(self) -> object:
        """The stored receipts, as they were given; None where there are none, or the file is unreadable."""
        try:
            return self._read().get(_CARDS)
        except StateError as error:
            _log.warning("receipts not read", path=str(self._path), error=error.message)
            return None

    def write_cards(self, cards: object) -> None:
        """Store the receipts that were read. Raises StateError."""
        self._change(_CARDS, cards)

    def read_issued(self) -> dict[tuple[str, str], IssuedReceipt]:
        """The last own receipts by repository and digest of the card. Raises StateError."""
        rows = self._read().get(_ISSUED)
        issued: dict[tuple[str, str], IssuedReceipt] = {}
        for row in rows if isinstance(rows, list) else ():
            try:
                issued[str(row["repository"]), str(row["card"])] = IssuedReceipt(
                    str(row["digest"]), float(row["at"])
                )
            except (KeyError, TypeError, ValueError):
                continue
        return issued

    def note_issued(self, place: tuple[str, str], receipt: IssuedReceipt) -> None:
        """Store that a receipt was issued for a card. Raises StateError."""
        issued = {**self.read_issued(), place: receipt}
        newest = sorted(issued.items(), key=lambda item: item[1].at)[-_MAX_ISSUED:]
        rows = [
            {"repository": repository, "card": card, "digest": last.digest, "at": last.at}
            for (repository, card), last in newest
        ]
        self._change(_ISSUED, rows)

    def _change(self, key: str, value: object) -> None:
        with self._changing, storage_errors(self._path):
            replace_file(self._path, orjson.dumps({**self._read(), key: value}), mode=0o600)

    def _read(self) -> Mapping[str, Any]:
        """The content; {} where there is no file or it is damaged, as before the first receipt.

        Raises StateError for a file that cannot be read now, because who wrote it anew would lose the rest.
        """
        try:
            content = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StateError(
                f"cannot read {self._path}: {error.strerror or error}",
                remedy="check the owner and permissions of the file",
            ) from error
        except orjson.JSONDecodeError as error:
            _log.warning("receipts not read", path=str(self._path), error=str(error))
            return {}
        return content if isinstance(content, dict) else {}


class ReceiptClaims:
    """The claims in the database at ``url``."""

    def __init__(self, url: str) -> None:
        self._database = ServerDatabase(url, _TABLES)

    def claim(self, place: tuple[str, str], now: float, every_s: float) -> bool:
        """Whether no hub has claimed this card in the last ``every_s`` seconds. Raises StateError."""
        claimed = self._database.read(_CLAIM, ("@".join(place), now, now - every_s))
        return bool(claimed)
