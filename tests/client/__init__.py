"""The client of a mesh: `retinue.connect`."""
