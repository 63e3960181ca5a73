"""The parts of a process: their interface, their inputs and their products."""
