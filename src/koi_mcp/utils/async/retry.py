"""Retries of asynchronous functions."""

from retinue.koi.retry import with_retry

__all__ = ["with_retry"]
