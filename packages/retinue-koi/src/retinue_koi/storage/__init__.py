"""The storage of a node: its cache of bundles, behind a journal."""
