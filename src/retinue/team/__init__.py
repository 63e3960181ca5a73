"""Teams as one OCI artifact: ``team.toml``, lock, layers, manifest, signature and differences. No I/O."""
