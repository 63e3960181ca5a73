"""A2A: agents of other frameworks call ours, and ours call them, by the Agent2Agent protocol 1.x and 0.3."""
