"""The parts of hub, agent and worker, and the lists of them."""
