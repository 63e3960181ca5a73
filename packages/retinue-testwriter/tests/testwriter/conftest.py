"""The fixtures of Retinue's own tests."""

from tests.conftest import retinue_home

__all__ = ["retinue_home"]
