"""Makes a Python module with one typed function per skill of a mesh, for editors and type checkers."""
