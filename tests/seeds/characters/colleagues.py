"""What Eddy does: asks everybody, and calls the best."""

from typing import Any

from retinue import Context


async def find_colleague(capabilities: list[str], ctx: Context) -> dict[str, Any]:
    """Ranks all agents for these capabilities."""
    answers = await ctx.ask_agents(capabilities)
    return {
        "ranked": [one.agent for one in answers.answers if one.agent != "Eddy"],
        "silent": [one.agent for one in answers.silent],
    }
