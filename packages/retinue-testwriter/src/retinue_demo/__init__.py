"""``retinue demo``, a program that starts a mesh with the agents of ``retinue_testwriter``."""
