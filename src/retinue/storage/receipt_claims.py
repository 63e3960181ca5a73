"""Claims of hubs on one Postgres database, so that one of them issues the receipt for a card."""

from __future__ import annotations

from retinue.storage.history_store import ServerDatabase

_TABLES = """
CREATE TABLE IF NOT EXISTS retinue_receipt_claims (id TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL);
"""
_CLAIM = """
INSERT INTO retinue_receipt_claims (id, at) VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET at = excluded.at WHERE retinue_receipt_claims.at <= ? RETURNING id
"""


class ReceiptClaims:
    """The claims in the database at ``url``."""

    def __init__(self, url: str) -> None:
        self._database = ServerDatabase(url, _TABLES)

    def claim(self, place: tuple[str, str], now: float, every_s: float) -> bool:
        """Whether no hub has claimed this card in the last ``every_s`` seconds. Raises StateError."""
        claimed = self._database.run(_CLAIM, [("@".join(place), now, now - every_s)], reads=True)
        return bool(claimed)
