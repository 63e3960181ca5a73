"""Retries of asynchronous functions."""

from retinue.koi.outbox import with_retry

__all__ = ["with_retry"]
