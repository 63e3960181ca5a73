"""Remote OCI registries over HTTP."""
