"""What the author of an agent uses: Agent, @agent.skill, Context."""
