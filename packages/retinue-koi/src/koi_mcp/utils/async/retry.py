"""Retries of asynchronous functions."""

from retinue_koi.outbox import with_retry

__all__ = ["with_retry"]
