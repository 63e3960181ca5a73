"""The handlers of personalities."""

from retinue_koi.personality_handlers import register_personality_handlers

__all__ = ["register_personality_handlers"]
