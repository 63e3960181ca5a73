"""What the tests of Retinue start from holds here as well."""

from tests.conftest import retinue_home

__all__ = ["retinue_home"]
