"""One trait of a personality."""

from retinue_koi.codec.personality import PersonalityTrait

__all__ = ["PersonalityTrait"]
