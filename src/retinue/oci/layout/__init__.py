"""OCI registries in a folder."""
