"""The identifier of a personality."""

from retinue_koi.codec.personality import AgentPersonality

__all__ = ["AgentPersonality"]
