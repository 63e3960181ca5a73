"""One trait of a personality."""

from retinue.koi.codec.personality import PersonalityTrait

__all__ = ["PersonalityTrait"]
