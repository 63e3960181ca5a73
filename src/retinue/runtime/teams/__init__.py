"""Teams that run on this machine: rows, files, environments and programs of digests."""
