"""The profile of an agent."""

from retinue_koi.codec.personality import PersonalityProfile

__all__ = ["PersonalityProfile"]
