"""The tables beside those of the engine, each with what reads and writes it."""
