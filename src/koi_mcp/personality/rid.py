"""The identifier of a personality."""

from retinue.koi.codec.personality import AgentPersonality

__all__ = ["AgentPersonality"]
