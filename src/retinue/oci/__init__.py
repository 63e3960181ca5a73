"""OCI registries: client, image layout, server, source of listings."""
