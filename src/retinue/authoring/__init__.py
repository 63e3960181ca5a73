"""The public API for authors of agents: Agent, @agent.skill, Context."""
