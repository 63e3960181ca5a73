"""The profile of an agent."""

from retinue.koi.codec.personality import PersonalityProfile

__all__ = ["PersonalityProfile"]
