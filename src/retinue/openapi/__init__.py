"""HTTP APIs described by OpenAPI documents, as skills."""
