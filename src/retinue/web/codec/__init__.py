"""Wire formats that several protocols share, without I/O."""
