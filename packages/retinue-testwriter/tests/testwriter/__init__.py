"""The tests of the agents that write tests, and of the demo."""
