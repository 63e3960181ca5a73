"""OCI documents and message flows, without I/O."""
