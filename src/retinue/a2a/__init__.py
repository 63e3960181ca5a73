"""A2A: calls between our agents and other frameworks, by the Agent2Agent protocol 1.x and 0.3."""
