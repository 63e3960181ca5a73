"""What a node keeps on disk: its cache of bundles, behind a journal."""
