"""The client of a mesh: `retinue.connect` for programs, and the calls of the command line to a hub."""
